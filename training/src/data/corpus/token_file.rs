//! Token files made by other tools: nanoGPT's `train.bin` and `val.bin`, and llm.c's shards.

use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use hearth_model::TokenId;

use super::open::{BytesRead, open_file};

/// llm.c's header: 256 numbers of 4 bytes.
const LLM_C_HEADER: usize = 256 * 4;
/// llm.c's magic for tokens of 2 bytes (GPT-2), and the version.
const LLM_C_GPT2: (u32, u32) = (20_240_520, 1);
/// For tokens of 4 bytes (Llama 3).
const LLM_C_LLAMA3: (u32, u32) = (20_240_801, 7);

/// Tokens read at a time.
const BLOCK: usize = 1 << 16;

/// Reads the tokens of a file, block by block. `vocab_size` is the size of the tokenizer in the folder `tokenizer`.
///
/// # Errors
/// The file is truncated, or has a token that is not below `vocab_size`: it was made with another tokenizer.
pub fn read_tokens(
    path: &Path,
    (vocab_size, tokenizer): (usize, &Path),
    bytes_read: &BytesRead,
    sink: &mut dyn FnMut(&[TokenId]) -> Result<()>,
) -> Result<()> {
    let shown = path.display();
    let file = open_file(path)?;
    let n_file = file.metadata().with_context(|| format!("cannot read `{shown}`"))?.len();
    let mut reader = BufReader::with_capacity(1 << 18, file);
    let start = reader.fill_buf().with_context(|| format!("cannot read `{shown}`"))?;
    let number = |index: usize| {
        let bytes = start.get(index * 4..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    let head = number(0).zip(number(1));
    let stated = number(2).map(u64::from);
    let (n_header, width) = match head {
        Some(LLM_C_GPT2) => (LLM_C_HEADER as u64, 2),
        Some(LLM_C_LLAMA3) => (LLM_C_HEADER as u64, 4),
        _ => (0, 2),
    };
    let n_body = n_file.saturating_sub(n_header);
    ensure!(
        n_body % width == 0,
        "`{shown}` has {n_body} bytes of tokens, which is not a multiple of {width}: it is truncated\nhint: download or copy the file again"
    );
    if n_header > 0 {
        let n_tokens = n_body / width;
        ensure!(
            stated == Some(n_tokens),
            "`{shown}` has {n_tokens} tokens, but its header says {}: it is truncated or damaged\nhint: download or copy the file again",
            stated.unwrap_or(0)
        );
        std::io::copy(&mut reader.by_ref().take(n_header), &mut std::io::sink())
            .with_context(|| format!("cannot read `{shown}`"))?;
    }
    let mut position = 0;
    let mut bytes = vec![0; BLOCK * width as usize];
    let mut ids = Vec::with_capacity(BLOCK);
    let mut left = n_body;
    while left > 0 {
        let n = left.min(bytes.len() as u64) as usize;
        reader.read_exact(&mut bytes[..n]).with_context(|| format!("cannot read `{shown}`"))?;
        ids.clear();
        match width {
            2 => ids.extend(bytes[..n].as_chunks().0.iter().map(|&token| TokenId::from(u16::from_le_bytes(token)))),
            _ => ids.extend(bytes[..n].as_chunks().0.iter().map(|&token| TokenId::from_le_bytes(token))),
        }
        if let Some(at) = ids.iter().position(|&id| id as usize >= vocab_size) {
            anyhow::bail!(
                "`{shown}` has the token {} at position {}, but the tokenizer `{}` has {vocab_size} tokens: they do not belong \
                 together\nhint: use the tokenizer that the file was made with",
                ids[at],
                position + at as u64,
                tokenizer.display()
            );
        }
        sink(&ids)?;
        position += ids.len() as u64;
        left -= n as u64;
        bytes_read.add(n as u64);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::fs;

    use super::*;

    fn read(bytes: &[u8], vocab_size: usize) -> Result<Vec<TokenId>> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("train.bin");
        fs::write(&path, bytes).unwrap();
        let mut found = Vec::new();
        read_tokens(&path, (vocab_size, Path::new("tok")), &BytesRead::default(), &mut |ids| {
            found.extend_from_slice(ids);
            Ok(())
        })?;
        Ok(found)
    }

    fn llm_c((magic, version): (u32, u32), n_tokens: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = [magic, version, n_tokens].iter().flat_map(|number| number.to_le_bytes()).collect();
        bytes.resize(LLM_C_HEADER, 0);
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn nanogpt_and_llm_c_token_files_are_read() {
        let ids: Vec<u16> = (0..200_000_u32).map(|n| (n % 50_257) as u16).collect();
        let expected: Vec<TokenId> = ids.iter().map(|&id| id.into()).collect();
        let narrow: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let wide: Vec<u8> = expected.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert!(read(&narrow, 50_257).unwrap() == expected);
        assert!(read(&llm_c(LLM_C_GPT2, 200_000, &narrow), 50_257).unwrap() == expected);
        assert!(read(&llm_c(LLM_C_LLAMA3, 200_000, &wide), 50_257).unwrap() == expected);
        assert!(read(&[], 10).unwrap().is_empty());
    }

    #[test]
    fn truncated_token_files_and_ids_beyond_the_vocabulary_are_rejected() {
        let cases = [
            (vec![1, 0, 2], "not a multiple of 2"),
            (vec![1, 0, 9, 0, 10, 0], "token 10 at position 2"),
            (llm_c(LLM_C_GPT2, 3, &[1, 0, 2, 0]), "has 2 tokens, but its header says 3"),
        ];
        for (bytes, message) in cases {
            let error = read(&bytes, 10).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("train.bin") && error.contains("\nhint: "), "{error}");
        }
    }
}
