//! Fuzz target: arguments of `fi_getinfo`. Every error is one that fi_getinfo(3) names. Every answer is
//! accepted again as hints.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_void};

use weft_fi_sys::*;
use weft_fuzz::{Reader, fuzz, hash};

use crate::client::{Info, Lib};

/// Numeric nodes only, since names would be looked up.
const NODES: [&CStr; 6] = [c"127.0.0.1", c"::1", c"fi_sockaddr_in://127.0.0.1:5", c"fi_weft://", c"", c"0.0.0.0"];
const SERVICES: [&CStr; 5] = [c"0", c"47592", c"65536", c"-1", c"fi_sockaddr_in6://[::1]:70000"];
const STRINGS: [&CStr; 4] = [c"weft", c"", c"weft;ofi_rxm", c"lo"];

/// The numeric words of each attribute structure: their number, and the indexes that must not be changed,
/// because they are pointers or lengths of buffers.
const TX: (usize, &[usize]) = (size_of::<fi_tx_attr>() / 8, &[]);
const RX: (usize, &[usize]) = (size_of::<fi_rx_attr>() / 8, &[]);
const EP: (usize, &[usize]) = (size_of::<fi_ep_attr>() / 8, &[10, 11]);
const DOMAIN: (usize, &[usize]) = (size_of::<fi_domain_attr>() / 8, &[0, 1, 19, 20]);

pub(crate) fn fuzzed(lib: &Lib) {
    // A node; the hints of an ordinary client; requests that are too high.
    let seeds = [
        vec![9, 0, 10, 1, 11, 1],
        [&[0][..], &(FI_MSG | FI_TAGGED | FI_RMA).to_le_bytes(), &[5, 0, 3, 0, 0, 0, 0, 0, 0, 0]].concat(),
        [&[3, 6][..], &u64::MAX.to_le_bytes(), &[6, 5], &16_u64.to_le_bytes()].concat(),
        [&[7, 16][..], &[2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], &[2], &1_u64.to_le_bytes()].concat(),
    ];
    let versions = lib.versions();
    let (mut found, mut others) = (0, BTreeSet::new());
    fuzz("hints", &seeds, |input| {
        let hints = lib.allocinfo();
        let mut reader = Reader(input);
        let (mut node, mut service, mut flags, mut api) = (None, None, 0, lib.newest());
        while !reader.is_empty() {
            let wish = reader.byte() % 14;
            match wish {
                0 => hints.get().caps = reader.word(),
                1 => hints.get().mode = reader.word(),
                2 => hints.get().addr_format = reader.word() as u32,
                3 => set(hints.get().tx_attr.cast(), TX, &mut reader),
                4 => set(hints.get().rx_attr.cast(), RX, &mut reader),
                5 => set(hints.get().ep_attr.cast(), EP, &mut reader),
                6 => set(hints.get().domain_attr.cast(), DOMAIN, &mut reader),
                7 | 8 => address(&hints, wish == 7, &mut reader),
                9 => node = Some(NODES[usize::from(reader.byte()) % NODES.len()]),
                10 => service = Some(SERVICES[usize::from(reader.byte()) % SERVICES.len()]),
                11 => {
                    flags =
                        [0, FI_SOURCE, FI_NUMERICHOST, FI_PROV_ATTR_ONLY, reader.word()][usize::from(reader.byte()) % 5]
                }
                12 => api = versions[usize::from(reader.byte()) % versions.len()],
                _ => string(&hints, &mut reader),
            }
        }
        let answer = lib.getinfo(api, node, service, flags, Some(&hints));
        let mut seen = vec![api as u8];
        match answer {
            // Another provider, or the host's own answer about all providers.
            Ok(info) if info.names() != ["weft"] => {
                others.insert((info.names().join(" "), flags & FI_PROV_ATTR_ONLY != 0));
                seen.push(1);
            }
            Ok(info) => {
                let caps = info.get().caps;
                let again = lib.getinfo(api, None, None, 0, Some(&info)).map(|again| again.get().caps);
                assert!(again.is_ok(), "an offered answer is not accepted as hints: {again:?}, api {api:#x}");
                found += 1;
                seen.extend(caps.to_le_bytes());
                seen.push(info.get().addr_format as u8);
            }
            Err(error) => {
                // fi_getinfo(3): FI_EBADFLAGS, FI_ENODATA, FI_ENOMEM, FI_ENOSYS; and for addresses FI_EINVAL.
                let known = [FI_ENODATA, FI_EBADFLAGS as i32, FI_EINVAL, FI_ENOSYS];
                assert!(known.contains(&error), "error {error}");
                seen.push(error as u8);
            }
        }
        hash(&seen)
    });
    println!("answers of other providers: {others:?}");
    assert!(found > 0, "every hint was refused");
}

/// Changes one number of a structure.
fn set(at: *mut u64, (words, untouched): (usize, &[usize]), reader: &mut Reader<'_>) {
    let word = usize::from(reader.byte()) % words;
    let value = reader.word();
    if !untouched.contains(&word) {
        unsafe { at.add(word).write(value) };
    }
}

/// Sets an address of arbitrary bytes. The host frees it.
fn address(hints: &Info<'_>, source: bool, reader: &mut Reader<'_>) {
    let len = usize::from(reader.byte());
    let bytes = reader.bytes(len);
    // One more byte terminates a string.
    let copy = unsafe { libc::calloc(1, bytes.len() + 1) };
    unsafe { copy.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    let info = hints.get();
    let (place, length): (&mut *mut c_void, &mut usize) = if source {
        (&mut info.src_addr, &mut info.src_addrlen)
    } else {
        (&mut info.dest_addr, &mut info.dest_addrlen)
    };
    unsafe { libc::free(*place) };
    (*place, *length) = (copy, bytes.len());
}

/// Sets a name or an authorization key.
fn string(hints: &Info<'_>, reader: &mut Reader<'_>) {
    let which = reader.byte();
    let text: CString = match STRINGS.get(usize::from(reader.byte())) {
        Some(text) => (*text).to_owned(),
        None => CString::new(reader.bytes(20).iter().map(|byte| byte | 1).collect::<Vec<u8>>()).unwrap(),
    };
    let len = text.count_bytes();
    let new = unsafe { libc::strdup(text.as_ptr()) };
    let place = match which % 5 {
        0 => &mut hints.fabric().prov_name,
        1 => &mut hints.fabric().name,
        2 => &mut hints.domain().name,
        3 => {
            unsafe { libc::free(hints.domain().auth_key.cast()) };
            (hints.domain().auth_key, hints.domain().auth_key_size) = (new.cast(), len);
            return;
        }
        _ => {
            unsafe { libc::free(hints.ep().auth_key.cast()) };
            (hints.ep().auth_key, hints.ep().auth_key_size) = (new.cast(), len);
            return;
        }
    };
    unsafe { libc::free((*place).cast()) };
    *place = new;
}
