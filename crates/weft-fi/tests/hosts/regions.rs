//! Memory registration.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_fi_sys::*;

use crate::client::{Lib, Opened, bind, close, control};

const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;

pub(crate) fn all(lib: &Lib) {
    keys(lib);
    provider_keys(lib);
    vectors_and_attributes(lib);
    counters(lib);
    events(lib);
}

fn opened(lib: &Lib, mr_mode: c_int) -> Opened {
    let info = lib.ask(lib.newest(), None).unwrap();
    info.domain().mr_mode = mr_mode;
    Opened::new(lib, &info)
}

fn register(opened: &Opened, memory: &mut [u8], access: u64, key: u64, flags: u64) -> Result<*mut fid_mr, c_int> {
    let mut mr = null_mut();
    let result = unsafe {
        let domain = opened.domain;
        let reg = (*(*domain).mr).reg.unwrap();
        reg(domain.cast(), memory.as_mut_ptr().cast(), memory.len(), access, 0, key, flags, &mut mr, null_mut())
    };
    if result == 0 { Ok(mr) } else { Err(result) }
}

/// Keys are chosen by the client, have 64 bits, and are unique.
fn keys(lib: &Lib) {
    let opened = opened(lib, 0);
    let mut memory = [0; 64];
    let high = 1 << 63 | 5;
    let mr = register(&opened, &mut memory, REMOTE, high, 0).unwrap();
    assert_eq!(unsafe { (*mr).key }, high);
    assert!(!unsafe { (*mr).mem_desc }.is_null());
    assert_eq!(register(&opened, &mut memory, REMOTE, high, 0), Err(-(FI_ENOKEY as i32)));
    let local = register(&opened, &mut memory, FI_SEND | FI_RECV, high, 0).unwrap();
    assert_eq!(close(opened.domain), -FI_EBUSY);
    assert_eq!(close(local), 0);
    assert_eq!(close(mr), 0);
    let mr = register(&opened, &mut memory, REMOTE, high, 0).unwrap();
    assert_eq!(control(mr, FI_REFRESH, null_mut()), 0);
    let (mut base, mut raw, mut size) = (7_u64, [0_u8; 8], 4_usize);
    let mut attr = fi_mr_raw_attr { flags: 0, base_addr: &mut base, raw_key: raw.as_mut_ptr(), key_size: &mut size };
    let attr: *mut c_void = (&raw mut attr).cast();
    assert_eq!(control(mr, FI_GET_RAW_MR, attr), -(FI_ETOOSMALL as i32));
    assert_eq!(control(mr, FI_GET_RAW_MR, attr), 0);
    assert_eq!((base, size), (0, 8));
    let mut key = 0;
    let mut map = fi_mr_map_raw { flags: 0, base_addr: base, raw_key: raw.as_mut_ptr(), key_size: 8, key: &mut key };
    assert_eq!(control(opened.domain, FI_MAP_RAW_MR, (&raw mut map).cast()), 0);
    assert_eq!(key, high);
    assert_eq!(control(opened.domain, FI_UNMAP_KEY, (&raw mut key).cast()), 0);
    assert_eq!(close(mr), 0);
    assert_eq!(register(&opened, &mut memory, 1 << 62, 1, 0), Err(-FI_EINVAL));
    assert_eq!(register(&opened, &mut memory, REMOTE, 1, FI_RMA_PMEM), Err(-(FI_EBADFLAGS as i32)));
    // Dynamic windows register all of memory.
    let mut whole = null_mut();
    let domain = opened.domain;
    let reg = unsafe { (*(*domain).mr).reg.unwrap() };
    let result = unsafe { reg(domain.cast(), null_mut(), usize::MAX, REMOTE, 0, 1, 0, &mut whole, null_mut()) };
    assert_eq!(result, 0);
    assert_eq!(close(whole), 0);
}

/// In modes with provider keys, every registration has a key of its own, whatever key is requested. Keys
/// cannot be guessed: they are spread over all 64 bits and are not reused.
fn provider_keys(lib: &Lib) {
    for mode in [FI_MR_BASIC as c_int, FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_LOCAL] {
        let opened = opened(lib, mode);
        let mut memory = [0; 64];
        let first = register(&opened, &mut memory, REMOTE, 0, 0).unwrap();
        let second = register(&opened, &mut memory, REMOTE, 0, 0).unwrap();
        let [a, b] = [first, second].map(|mr| unsafe { (*mr).key });
        assert_eq!(close(first), 0);
        assert_eq!(close(second), 0);
        let mut keys = vec![a, b];
        for _ in 0..62 {
            let mr = register(&opened, &mut memory, REMOTE, 0, 0).unwrap();
            keys.push(unsafe { (*mr).key });
            assert_eq!(close(mr), 0);
        }
        // Among 64 random keys each bit takes both values, with a negligible error probability. The same
        // holds for the differences.
        for differ in [0, 1] {
            let values = keys.windows(2).map(|pair| pair[0].wrapping_sub(pair[1] * differ));
            let (or, and) = values.fold((0, u64::MAX), |(or, and), value| (or | value, and & value));
            assert_eq!((or, and), (u64::MAX, 0));
        }
    }
}

fn vectors_and_attributes(lib: &Lib) {
    let opened = opened(lib, 0);
    let mut memory = [0_u8; 64];
    let piece = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: 32 };
    let many = [piece; 9];
    let domain = opened.domain;
    let mut mr = null_mut();
    unsafe {
        let regv = (*(*domain).mr).regv.unwrap();
        assert_eq!(regv(domain.cast(), many.as_ptr(), 8, REMOTE, 0, 1, 0, &mut mr, null_mut()), 0);
        assert_eq!(close(mr), 0);
        assert_eq!(regv(domain.cast(), many.as_ptr(), 9, REMOTE, 0, 1, 0, &mut mr, null_mut()), -FI_EINVAL);
        let regattr = (*(*domain).mr).regattr.unwrap();
        let mut attr: fi_mr_attr = std::mem::zeroed();
        attr.mr_iov = many.as_ptr();
        attr.iov_count = 1;
        attr.access = REMOTE;
        attr.requested_key = 77;
        assert_eq!(regattr(domain.cast(), &attr, 0, &mut mr), 0);
        assert_eq!((*mr).key, 77);
        assert_eq!(close(mr), 0);
        attr.iface = FI_HMEM_CUDA;
        assert_eq!(regattr(domain.cast(), &attr, 0, &mut mr), -FI_ENOSYS);
    }
}

fn counters(lib: &Lib) {
    let opened = opened(lib, 0);
    let mut memory = [0; 64];
    let mr = register(&opened, &mut memory, REMOTE, 3, 0).unwrap();
    let cntr = opened.cntr();
    assert_eq!(bind(mr, cntr, FI_REMOTE_WRITE), 0, "after registration");
    assert_eq!(bind(mr, cntr, FI_SEND), -(FI_EBADFLAGS as i32));
    assert_eq!(close(cntr), -FI_EBUSY);
    assert_eq!(close(mr), 0);
    assert_eq!(close(cntr), 0);
    // Created disabled, bound, then enabled.
    let opened = self::opened(lib, FI_MR_RMA_EVENT);
    let mr = register(&opened, &mut memory, REMOTE, 3, FI_RMA_EVENT).unwrap();
    let cntr = opened.cntr();
    assert_eq!(bind(mr, cntr, FI_REMOTE_WRITE | FI_REMOTE_READ), 0);
    assert_eq!(control(mr, FI_ENABLE, null_mut()), 0);
    assert_eq!(close(mr), 0);
    assert_eq!(close(cntr), 0);
    // Without the capability there are no counters.
    let hints = lib.allocinfo();
    hints.get().caps = FI_RMA;
    let opened = Opened::new(lib, &lib.ask(lib.newest(), Some(&hints)).unwrap());
    let mr = register(&opened, &mut memory, REMOTE, 3, 0).unwrap();
    let cntr = opened.cntr();
    assert_eq!(bind(mr, cntr, FI_REMOTE_WRITE), -FI_EOPNOTSUPP);
    assert_eq!(close(mr), 0);
    assert_eq!(close(cntr), 0);
}

/// Registration may be reported to an event queue.
fn events(lib: &Lib) {
    let opened = opened(lib, 0);
    let eq = opened.eq(|_| ()).unwrap();
    assert_eq!(bind(opened.domain, eq, FI_REG_MR), 0);
    let mr = register(&opened, &mut [0; 8], REMOTE, 3, 0).unwrap();
    let mut event = 0;
    let mut entry: fi_eq_entry = unsafe { std::mem::zeroed() };
    let read = unsafe { (*(*eq).ops).read.unwrap() };
    let size = size_of::<fi_eq_entry>();
    assert_eq!(unsafe { read(eq, &mut event, (&raw mut entry).cast(), size, 0) }, size as isize);
    assert_eq!((event, entry.fid), (FI_MR_COMPLETE, mr.cast()));
    assert_eq!(close(mr), 0);
    assert_eq!(close(eq), -FI_EBUSY, "bound to the domain");
    let Opened { fabric, domain } = *std::mem::ManuallyDrop::new(opened);
    for result in [close(domain), close(eq), close(fabric)] {
        assert_eq!(result, 0);
    }
}
