//! weft's devices. Each implements `weft_engine::nic::Nic`; all system calls and shared memory live here.

pub mod shm;
