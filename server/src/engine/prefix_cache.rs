//! Names for what is in a page, so that prompts which start alike are computed once.
//!
//! A page's name is a hash of its tokens and of the name of the page before it, so that it stands for everything from the
//! start of the text on; the first one is chained to the request's salt. What is kept under these names, and what is
//! thrown out first, is in [`hearth_model::kv_cache`].
//!
//! A name that stands for two texts would show one client's text to another. So names have 128 bits, and their hash is
//! keyed with random numbers of this process: nobody outside can look for two texts with one name.

use std::hash::{BuildHasher, Hasher, RandomState};

use hearth_model::{
    TokenId,
    kv_cache::{PAGE_SIZE, PageKey},
};

/// The random numbers that key the hash.
#[derive(Clone, Debug, Default)]
pub struct PrefixSecret([RandomState; 2]);

/// The names of one sequence's pages, as far as its tokens go.
#[derive(Clone, Debug)]
pub struct PrefixChain {
    secret: PrefixSecret,
    last: PageKey,
}

impl PrefixChain {
    /// A chain that stands before the first page. Chains of different salts have no name in common, nor have those of
    /// prompts of different lengths, where these are given because what is in the pages depends on them.
    pub fn new(secret: &PrefixSecret, salt: Option<&str>, n_prompt: Option<usize>) -> Self {
        let last = secret.hash(|hasher| {
            // No text has 0xff or 0xfe: an empty salt is apart from none.
            if let Some(salt) = salt {
                hasher.write(&[salt.as_bytes(), &[0xff]].concat());
            }
            if let Some(n_prompt) = n_prompt {
                hasher.write(&[&[0xfe], &n_prompt.to_le_bytes()[..]].concat());
            }
        });
        Self { secret: secret.clone(), last }
    }

    /// The name of the next page, which holds these tokens.
    pub fn next(&mut self, page: &[TokenId]) -> PageKey {
        let before = self.last;
        self.last = self.secret.hash(|hasher| {
            hasher.write_u128(before.0);
            page.iter().for_each(|&id| hasher.write_u32(id));
        });
        self.last
    }

    /// The names of all full pages of a text that starts where the chain stands.
    pub fn extend(&mut self, token_ids: &[TokenId]) -> Vec<PageKey> {
        token_ids.chunks_exact(PAGE_SIZE).map(|page| self.next(page)).collect()
    }

    /// The name of the last page of a text that has just grown by a token, if that token fills it.
    pub fn grown(&mut self, token_ids: &[TokenId]) -> Option<PageKey> {
        let start = token_ids.len().checked_sub(PAGE_SIZE)?;
        let page = token_ids.get(start..).filter(|_| token_ids.len().is_multiple_of(PAGE_SIZE))?;
        Some(self.next(page))
    }
}

impl PrefixSecret {
    fn hash(&self, write: impl Fn(&mut dyn Hasher)) -> PageKey {
        let [low, high] = &self.0;
        let half = |state: &RandomState| {
            let mut hasher = state.build_hasher();
            write(&mut hasher);
            u128::from(hasher.finish())
        };
        PageKey(half(high) << 64 | half(low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_everything_from_the_start() {
        let secret = PrefixSecret::default();
        let names = |salt, ids: &[TokenId]| PrefixChain::new(&secret, salt, None).extend(ids);
        let text: Vec<TokenId> = (0..50).collect();
        let keys = names(None, &text);
        assert_eq!(keys.len(), 3);
        assert_eq!(names(None, &text[..33]), keys[..2]);
        let mut other = text.clone();
        other[20] = 99;
        let others = names(None, &other);
        assert_eq!(others[0], keys[0]);
        assert_ne!(others[1], keys[1]);
        assert_ne!(others[2], keys[2], "the third page is alike, but not what is before it");
        for salt in [Some(""), Some("a")] {
            assert_ne!(names(salt, &text)[0], keys[0]);
        }
        assert_ne!(names(Some("a"), &text), names(Some("b"), &text));
        let of_length = |n_prompt| PrefixChain::new(&secret, None, n_prompt).extend(&text);
        assert_ne!(of_length(Some(50)), of_length(Some(51)));
        assert_ne!(of_length(Some(50)), keys);
        assert_ne!(PrefixChain::new(&PrefixSecret::default(), None, None).extend(&text), keys, "keyed by the process");
    }

    #[test]
    fn growing_by_tokens_names_the_same_pages() {
        let secret = PrefixSecret::default();
        let text: Vec<TokenId> = (7..60).collect();
        let mut chain = PrefixChain::new(&secret, None, None);
        let mut keys = chain.extend(&text[..20]);
        keys.extend((21..=text.len()).filter_map(|end| chain.grown(&text[..end])));
        assert_eq!(keys, PrefixChain::new(&secret, None, None).extend(&text));
    }
}
