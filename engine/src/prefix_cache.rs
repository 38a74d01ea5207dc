//! Keys of pages, so that the common beginning of prompts is computed once.
//!
//! A page's key is the SHA-256 of the previous page's key and of its own tokens, so it identifies the whole text from
//! the start. The first page is chained to the request's [`PrefixSalt`]: requests with different salts never share a
//! page. `docs/serving/security.md` documents how keys are computed, so that routers can do the same. [`hearth_model::gpt::kv_cache`]
//! stores pages by key and evicts them.

use hearth_model::{
    TokenId,
    files::digest::{Digest, Digester},
    gpt::kv_cache::{PAGE_SIZE, PageKey},
};

use crate::token_ids::TokenIds;

/// The root of requests without a salt.
const NO_SALT: PageKey = PageKey([0; 32]);

/// Separates the pages of some requests from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixSalt(PageKey);

impl PrefixSalt {
    /// The salt of an API key: the SHA-256 of `key:` and the key.
    pub fn of_key(key: &[u8]) -> Self {
        Self(hash(&[b"key:", key]))
    }

    /// The salt of a request's `cache_salt`: the SHA-256 of `cache_salt:` and the text.
    pub fn of_request(cache_salt: &str) -> Self {
        Self(hash(&[b"cache_salt:", cache_salt.as_bytes()]))
    }
}

/// The keys of one sequence's pages, up to its last token.
#[derive(Clone, Debug)]
pub struct PrefixChain {
    last: PageKey,
}

impl PrefixChain {
    /// A chain before the first page. Chains with different salts have no keys in common.
    pub fn new(salt: Option<PrefixSalt>) -> Self {
        Self { last: salt.map_or(NO_SALT, |salt| salt.0) }
    }

    /// The chain for pages that an adapter computes. These share no keys with the pages of the model or of other
    /// adapters. `digest` identifies the adapter's values.
    #[must_use]
    pub fn of_adapter(self, digest: &Digest) -> Self {
        Self { last: hash(&[&self.last.0, b"adapter:", &digest.0]) }
    }

    /// The chain for texts about a source, whose pages depend on all tokens of the source.
    #[must_use]
    pub fn of_source(self, source_ids: &[TokenId]) -> Self {
        let tokens: Vec<u8> = source_ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self { last: hash(&[&self.last.0, b"source:", &tokens]) }
    }

    /// The key of the next page, which has these tokens.
    pub fn next(&mut self, page: &[TokenId]) -> PageKey {
        let tokens: Vec<u8> = page.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.last = hash(&[&self.last.0, &tokens]);
        self.last
    }

    /// The keys of all full pages of a text that starts at the chain's position.
    pub fn extend(&mut self, token_ids: &[TokenId]) -> Vec<PageKey> {
        token_ids.chunks_exact(PAGE_SIZE).map(|page| self.next(page)).collect()
    }

    /// The key of the last page of a text that has grown by a token, if that token fills it.
    pub(crate) fn grown(&mut self, token_ids: TokenIds<'_>) -> Option<PageKey> {
        let end = token_ids.len();
        let start = end.checked_sub(PAGE_SIZE).filter(|_| end.is_multiple_of(PAGE_SIZE))?;
        Some(self.next(&token_ids.range(start..end).collect::<Vec<_>>()))
    }
}

/// The SHA-256 of the concatenated bytes.
fn hash(parts: &[&[u8]]) -> PageKey {
    let mut digester = Digester::new();
    parts.iter().for_each(|part| digester.update(part));
    PageKey(digester.finish().0)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn keys_of(salt: Option<PrefixSalt>, ids: &[TokenId]) -> Vec<PageKey> {
        PrefixChain::new(salt).extend(ids)
    }

    #[test]
    fn page_key_depends_on_prefix_and_adapter() {
        let text: Vec<TokenId> = (0..50).collect();
        let keys = keys_of(None, &text);
        assert_eq!(keys.len(), 3);
        assert_eq!(keys_of(None, &text[..33]), keys[..2]);
        let mut other = text.clone();
        other[20] = 99;
        let others = keys_of(None, &other);
        assert_eq!(others[0], keys[0]);
        assert_ne!(others[1], keys[1]);
        assert_ne!(others[2], keys[2], "the third page has equal tokens after different ones");
        let of_adapter = |digest| PrefixChain::new(None).of_adapter(&Digest([digest; 32])).extend(&text);
        assert_ne!(of_adapter(1), of_adapter(2));
        assert!(of_adapter(1).iter().all(|key| !keys.contains(key)));
    }

    /// The encoder's output for a token also depends on later tokens.
    #[test]
    fn page_keys_of_a_source_depend_on_its_last_token() {
        let keys = |ids: &[TokenId]| PrefixChain::new(None).of_source(ids).extend(ids);
        let source: Vec<TokenId> = (0..32).collect();
        let mut other = source.clone();
        other[31] = 99;
        assert!(keys(&source).iter().all(|key| !keys(&other).contains(key)));
        assert_eq!(keys(&source), keys(&source));
    }

    #[test]
    fn different_salts_share_no_page_keys() {
        let text: Vec<TokenId> = (0..50).collect();
        let mut salts = vec![None];
        salts.extend(["", "a", "b", "key:a"].map(|salt| Some(PrefixSalt::of_request(salt))));
        salts.extend(["a", "b", "cache_salt:a"].map(|key| Some(PrefixSalt::of_key(key.as_bytes()))));
        let all: std::collections::BTreeSet<[u8; 32]> =
            salts.iter().flat_map(|salt| keys_of(*salt, &text)).map(|key| key.0).collect();
        assert_eq!(all.len(), 3 * salts.len());
    }

    #[test]
    fn page_keys_grown_token_by_token_equal_those_of_the_whole_text() {
        let text: Vec<TokenId> = (7..60).collect();
        let mut chain = PrefixChain::new(None);
        let mut keys = chain.extend(&text[..20]);
        keys.extend((21..=text.len()).filter_map(|end| chain.grown(TokenIds::of(&text[..end]))));
        assert_eq!(keys, keys_of(None, &text));
    }

    /// The keys in `docs/serving/security.md` are the ones that the engine computes.
    #[test]
    fn page_keys_documented_in_serving_md_are_the_computed_ones() {
        let text: Vec<TokenId> = (1..=32).collect();
        let documented = include_str!("../../docs/serving/security.md");
        let salts = [
            ("none", None),
            ("key `sk-example`", Some(PrefixSalt::of_key(b"sk-example"))),
            ("`cache_salt` `tenant-7`", Some(PrefixSalt::of_request("tenant-7"))),
        ];
        for (salt, root) in salts {
            let row = documented.lines().find(|line| line.starts_with(&format!("| {salt} |"))).unwrap();
            let expected: Vec<String> = keys_of(root, &text).iter().map(|key| format!("`{}`", Digest(key.0))).collect();
            let cells: Vec<&str> = row.split('|').map(str::trim).filter(|cell| !cell.is_empty()).skip(1).collect();
            assert_eq!(cells, expected, "{salt}");
        }
    }
}
