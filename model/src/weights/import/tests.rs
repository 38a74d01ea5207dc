//! Files that are broken or hostile, and tensors in other orders than rows.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{io::Write, path::Path};

use super::{
    pickle::{Pickle, Problem},
    tokenizers::parse_tokenizer,
    torch_file::TorchFile,
};
use crate::error::Result;

/// A pickle of protocol 2 with these opcodes.
fn pickle(opcodes: &[&[u8]]) -> Vec<u8> {
    [b"\x80\x02", &opcodes.concat()[..], b"."].concat()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn int(int: i64) -> Vec<u8> {
    [b"\x8a\x08", &int.to_le_bytes()[..]].concat()
}

fn tuple(items: &[i64]) -> Vec<u8> {
    [b"(", &items.iter().flat_map(|&item| int(item)).collect::<Vec<_>>()[..], b"t"].concat()
}

/// A view of the storage `key` of `len` numbers of `kind`.
fn tensor((kind, key, len): (&str, &str, i64), offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let storage = format!("ctorch\n{kind}\n");
    let storage = [b"(", &text("storage")[..], storage.as_bytes(), &text(key), &text("cpu"), &int(len), b"tQ"].concat();
    [b"ctorch._utils\n_rebuild_tensor_v2\n(", &storage[..], &int(offset), &tuple(shape), &tuple(strides), b"\x89NtR"]
        .concat()
}

/// A file of `torch.save` with one tensor, `w`.
fn file_of(tensor: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let pickle = pickle(&[b"}(", &text("_orig_mod.module.w"), tensor, b"u"]);
    let mut files = vec![("ckpt/data.pkl", &pickle[..]), ("ckpt/byteorder", b"little")];
    files.extend(storages);
    archive(&files, rawzip::CompressionMethod::STORE)
}

fn archive(files: &[(&str, &[u8])], method: rawzip::CompressionMethod) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut archive = rawzip::ZipArchiveWriter::new(&mut bytes);
    for (name, data) in files {
        let (mut entry, config) = archive.new_file(name).compression_method(method).start().unwrap();
        let mut writer = config.wrap(&mut entry);
        writer.write_all(data).unwrap();
        let (_, descriptor) = writer.finish().unwrap();
        entry.finish(descriptor).unwrap();
    }
    archive.finish().unwrap();
    bytes
}

/// A tensor's name, shape and bytes.
type Plain = (String, Vec<usize>, Vec<u8>);

/// The tensors of a file.
fn read(bytes: &[u8]) -> Result<Vec<Plain>> {
    let file = TorchFile::read(bytes, Path::new("ckpt.pt"))?;
    let tensors = file.tensors(file.root())?;
    Ok(tensors.into_iter().map(|tensor| (tensor.name, tensor.shape, tensor.bytes.into_owned())).collect())
}

fn assert_rejected(bytes: &[u8], expected: &str) {
    let error = read(bytes).unwrap_err().to_string();
    assert!(error.contains("`ckpt.pt`") && error.contains(expected), "`{expected}` is not in: {error}");
}

#[test]
fn pickle_that_would_run_code_is_rejected_with_its_byte_offset() {
    let system = pickle(&[b"cos\nsystem\n", &text("touch /tmp/harm"), b"\x85R"]);
    let eval = pickle(&[&text("builtins"), &text("eval"), b"\x93", &text("1"), b"\x85R"]);
    for (bytes, at, global) in [(&system, 2, "os.system"), (&eval, 24, "builtins.eval")] {
        let Problem { at: found, what } = Pickle::read(bytes).unwrap_err();
        assert!(what.contains(&format!("asks for `{global}`")), "{what}");
        assert_eq!(found, at);
    }
    let bytes = archive(&[("a/data.pkl", &system[..])], rawzip::CompressionMethod::STORE);
    assert_rejected(&bytes, "at byte 2 of `a/data.pkl`: asks for `os.system`");
    assert!(parse_tokenizer(&system).unwrap_err().contains("os.system"));
    // Known globals with wrong arguments are rejected.
    for bytes in [
        pickle(&[b"ccollections\nOrderedDict\n", &text("x"), b"\x85R"]),
        pickle(&[b"ctorch\nFloatStorage\n)R"]),
        pickle(&[b"ctorch._utils\n_rebuild_tensor_v2\n)R"]),
        pickle(&[b"ctorch\nSize\n", &text("x"), b"\x85R"]),
        pickle(&[b"NNR"]),
    ] {
        assert!(Pickle::read(&bytes).unwrap_err().what.contains("calls"));
    }
}

#[test]
fn malformed_pickles_are_rejected() {
    let many = [b"\x80\x02", &b"N".repeat((1 << 22) + 1)[..], b"."].concat();
    for (bytes, expected) in [
        (&b""[..], "ends after 0 bytes"),
        (b"\x80\x02", "ends after 2 bytes"),
        (b"\x80\x02.", "empty stack"),
        (b"\x80\x02NNNN", "ends after"),
        (b"\x80\x00N.", "is of protocol 0"),
        (b"\x80\x02X\xff\xff\xff\xffabc", "in the middle of a value of 4294967295"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc", "ends after"),
        (b"\x80\x02X\x01\0\0\0\xff.", "not UTF-8"),
        (b"\x80\x02ctorch", "a name without an end"),
        (b"\x80\x02R.", "empty stack"),
        (b"\x80\x02N(b.", "empty stack"),
        (b"\x80\x02t.", "no beginning"),
        (b"\x80\x02h\x05.", "place 5 of the memo"),
        (b"\x80\x02\x8f.", "opcode 0x8f"),
        (b"\x80\x02\x82\x01.", "opcode 0x82"),
        (b"\x80\x02(iposix\nsystem\n.", "opcode 0x69"),
        (b"\x80\x02NNa.", "other than a list"),
        (b"\x80\x02NNNs.", "other than a dict"),
        (b"\x80\x02}(Nu.", "other than a dict"),
        (b"\x80\x02NNb.", "sets attributes"),
        (b"\x80\x02NQ.", "no storage"),
        (b"\x80\x02NN\x93.", "other than strings"),
        (b"\x80\x02\x8a\x09\0\0\0\0\0\0\0\0\x01.", "whole number of 9 bytes"),
        (&many, "more than 4194304 values"),
    ] {
        let what = Pickle::read(bytes).unwrap_err().what;
        assert!(what.contains(expected), "`{expected}` is not in: {what}");
    }
}

/// The call is memoized, so each takes 6 bytes of the file.
#[test]
fn pickle_value_limit_counts_tensor_shapes_but_not_repeated_calls() {
    let repeated = |call: &[&[u8]], n: usize| {
        let [callee, arguments] = call else { unreachable!() };
        let calls = b"h\x00h\x01R0".repeat(n);
        pickle(&[callee, b"q\x00", arguments, b"q\x01", &calls, b"h\x00h\x01R"])
    };
    // Neither a parameter nor its sizes are copied.
    let view = tensor(("FloatStorage", "0", 6), 0, &[6], &[1]);
    let parameter: [&[u8]; 2] = [b"ctorch._utils\n_rebuild_parameter\n", &[b"(", &view[..], b"\x89Nt"].concat()];
    let read = repeated(&parameter, 1 << 22);
    assert_eq!(Pickle::read(&read).unwrap().root().tensor().unwrap().shape, [6]);
    let size: [&[u8]; 2] = [b"ctorch\nSize\n", &[&tuple(&[6])[..], b"\x85"].concat()];
    assert_eq!(Pickle::read(&repeated(&size, 1 << 22)).unwrap().root().kind(), "a list");
    // Shapes of tensors count.
    let view = tensor(("FloatStorage", "0", 6), 0, &[1; 64], &[1; 64]);
    let (callee, arguments) = view.split_at(b"ctorch._utils\n_rebuild_tensor_v2\n".len());
    let call = [callee, &arguments[..arguments.len() - 1]];
    Pickle::read(&repeated(&call, 1 << 10)).unwrap();
    let what = Pickle::read(&repeated(&call, 1 << 15)).unwrap_err().what;
    assert!(what.contains("more than 4194304 values"), "{what}");
}

#[test]
fn pickled_plain_values_are_read_and_others_rejected_by_name() {
    let map = |bytes: &[u8]| Pickle::read(bytes).map_err(|problem| problem.what).and_then(|read| read.root().to_map());
    let value = |value: &[u8]| pickle(&[b"}", &text("k"), value, b"s"]);
    for (bytes, expected) in [
        (value(b"K\x07"), "7"),
        (value(b"M\x01\x02"), "513"),
        (value(b"J\xff\xff\xff\xff"), "-1"),
        (value(b"\x8a\x01\x80"), "-128"),
        (value(b"\x8a\x00"), "0"),
        (value(&int(i64::MIN)), "-9223372036854775808"),
        (value(b"G\x3f\xe0\0\0\0\0\0\0"), "0.5"),
        (value(b"\x88"), "true"),
        (value(b"N"), "null"),
    ] {
        assert_eq!(map(&bytes).unwrap()["k"].to_string(), expected);
    }
    for (bytes, expected) in [
        (value(b"G\x7f\xf8\0\0\0\0\0\0"), "has NaN for `k`"),
        (value(b"G\x7f\xf0\0\0\0\0\0\0"), "has inf for `k`"),
        (value(b"]"), "has a list for `k`"),
        // A list that holds itself.
        (value(b"]q\x00h\x00a"), "has a list for `k`"),
        (pickle(&[b"}NNs"]), "a key that is None"),
        (pickle(&[b"]"]), "is a list, not a dict"),
    ] {
        let error = map(&bytes).unwrap_err();
        assert!(error.contains(expected), "`{expected}` is not in: {error}");
    }
}

#[test]
fn strided_tensor_views_are_read_in_row_major_order() {
    let numbers: Vec<u8> = (0..12).collect();
    let storage = ("ByteStorage", "0", 12);
    let data: &[(&str, &[u8])] = &[("ckpt/data/0", &numbers)];
    for (offset, shape, strides, expected) in [
        (0, &[3, 4][..], &[4, 1][..], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][..]),
        (0, &[4, 3], &[1, 4], &[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]),
        (5, &[2, 2], &[4, 1], &[5, 6, 9, 10]),
        (1, &[2, 1, 2], &[6, i64::MAX, 3], &[1, 4, 7, 10]),
        (0, &[2, 2, 3], &[6, 1, 2], &[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]),
        (11, &[], &[], &[11]),
        (0, &[2, 0], &[0, 1], &[]),
        (7, &[3], &[1], &[7, 8, 9]),
    ] {
        let read = read(&file_of(&tensor(storage, offset, shape, strides), data)).unwrap();
        let shape: Vec<_> = shape.iter().map(|&size| size as usize).collect();
        // The wrappers' prefixes are gone.
        assert_eq!(read, [("w".to_owned(), shape, expected.to_vec())]);
    }
    // Wider numbers, transposed.
    let numbers: Vec<u8> = (0..6u16).flat_map(|n| (n * 257).to_le_bytes()).collect();
    let bytes = file_of(&tensor(("BFloat16Storage", "k", 6), 0, &[2, 3], &[1, 2]), &[("ckpt/data/k", &numbers)]);
    let expected: Vec<u8> = [0, 2, 4, 1, 3, 5].into_iter().flat_map(|n: u16| (n * 257).to_le_bytes()).collect();
    assert_eq!(read(&bytes).unwrap()[0].2, expected);
}

#[test]
fn tensors_beyond_their_storage_are_rejected() {
    let numbers = [0; 24];
    let data: &[(&str, &[u8])] = &[("ckpt/data/0", &numbers)];
    let storage = ("FloatStorage", "0", 6);
    for (offset, shape, strides) in [
        (1, &[2, 3][..], &[3, 1][..]),
        (0, &[7], &[1]),
        (0, &[2], &[6]),
        (6, &[1], &[1]),
        (6, &[], &[]),
        (i64::MAX, &[2], &[1]),
        (0, &[2, 2], &[i64::MAX, i64::MAX]),
        (0, &[i64::MAX, i64::MAX, i64::MAX], &[1, 1, 1]),
        // Shapes with more values than the storage.
        (0, &[1 << 40], &[0]),
        (0, &[4, 2], &[1, 1]),
    ] {
        assert_rejected(&file_of(&tensor(storage, offset, shape, strides), data), "tensor `w`: has shape");
    }
    for (offset, shape, strides) in [(-1, &[2][..], &[1][..]), (0, &[-2], &[1]), (0, &[2], &[-1]), (0, &[2], &[1, 1])] {
        assert_rejected(&file_of(&tensor(storage, offset, shape, strides), data), "calls RebuildTensor");
    }
    let short = ("FloatStorage", "0", 7);
    assert_rejected(&file_of(&tensor(short, 0, &[7], &[1]), data), "should have 7 numbers of 4 bytes and has 24 bytes");
    let huge = ("DoubleStorage", "0", i64::MAX);
    assert_rejected(&file_of(&tensor(huge, 0, &[1], &[1]), data), "should have 9223372036854775807 numbers");
    assert_rejected(
        &file_of(&tensor(("FloatStorage", "1", 6), 0, &[6], &[1]), data),
        "`data/1`, which the file does not have",
    );
    // Copies of one storage over and over.
    let view = tensor(storage, 0, &[2, 3], &[1, 2]);
    let views: Vec<u8> = (0..200).flat_map(|n| [&text(&format!("w{n}"))[..], &view].concat()).collect();
    let bytes = archive(
        &[("c/data.pkl", &pickle(&[b"}(", &views, b"u"])[..]), ("c/data/0", &numbers)],
        rawzip::CompressionMethod::STORE,
    );
    read(&bytes).unwrap();
    let mut many = Vec::new();
    let wide = vec![0; 1 << 16];
    let view = tensor(("FloatStorage", "0", 1 << 14), 0, &[128, 128], &[1, 128]);
    many.extend((0..20).flat_map(|n| [&text(&format!("w{n}"))[..], &view].concat()));
    let bytes = archive(
        &[("c/data.pkl", &pickle(&[b"}(", &many, b"u"])[..]), ("c/data/0", &wide)],
        rawzip::CompressionMethod::STORE,
    );
    assert_rejected(&bytes, "more than the whole file");
}

#[test]
fn malformed_torch_archives_are_rejected_without_panic() {
    let whole = file_of(&tensor(("FloatStorage", "0", 2), 0, &[2], &[1]), &[("ckpt/data/0", &[0; 8])]);
    read(&whole).unwrap();
    for len in 0..whole.len() {
        read(&whole[..len]).unwrap_err();
    }
    assert_rejected(&whole[..whole.len() / 2], "is not an archive of `torch.save`");
    assert_rejected(b"\x80\x02\x8a\x0a", "before PyTorch 1.6");
    let store = rawzip::CompressionMethod::STORE;
    assert_rejected(&archive(&[("x.txt", b"")], store), "without `data.pkl`");
    assert_rejected(&archive(&[("a/data.pkl", b"N.")], rawzip::CompressionMethod::DEFLATE), "which is compressed");
    assert_rejected(&archive(&[("a/data.pkl", b"\x80\x02N."), ("a/byteorder", b"big")], store), "byte order `big`");
    assert_rejected(&archive(&[("a/data.pkl", b"N."), ("a/data.pkl", b"N.")], store), "`a/data.pkl` in it twice");
    assert_rejected(&archive(&[("a/data.pkl", b"\x80\x02N.")], store), "has None where the tensors");
    // Any other byte at any place: an error or another value, no panic.
    for at in 0..whole.len() {
        for byte in [0x00, 0x7f, 0xff, whole[at] ^ 1, whole[at] ^ 0x80] {
            let mut other = whole.clone();
            other[at] = byte;
            drop(read(&other));
        }
    }
}

#[test]
fn incomplete_pickled_tokenizers_are_rejected() {
    let meta = |itos: &[u8]| pickle(&[b"}", &text("itos"), b"}(", itos, b"us"]);
    let two = [&b"K\x00"[..], &text("a"), b"K\x01", &text("é")].concat();
    let Ok(super::PickledTokenizer::Characters(characters)) = parse_tokenizer(&meta(&two)) else { unreachable!() };
    assert_eq!(characters, ['a', 'é']);
    for (itos, expected) in [
        ([&b"K\x01"[..], &text("a")].concat(), "no character for id 0"),
        ([&b"K\x00"[..], &text("ab")].concat(), "other than a character for id 0"),
        ([&b"N"[..], &text("a")].concat(), "a key that is None"),
    ] {
        let error = parse_tokenizer(&meta(&itos)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
    assert!(parse_tokenizer(&pickle(&[b"}"])).unwrap_err().contains("`itos`"));
    let encoding = |state: &[u8]| pickle(&[b"ctiktoken.core\nEncoding\n)\x81", state, b"b"]);
    let error = parse_tokenizer(&encoding(&[b"}", &text("pat_str")[..], &text("."), b"s"].concat())).unwrap_err();
    assert!(error.contains("no `mergeable_ranks`"), "{error}");
}
