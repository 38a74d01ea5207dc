//! The tokens of a sequence in two parts: the prompt, which other answers share, and the generated tokens.

use std::ops::Range;

use hearth_model::TokenId;

#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenIds<'a> {
    pub(crate) prompt: &'a [TokenId],
    pub(crate) output: &'a [TokenId],
}

impl<'a> TokenIds<'a> {
    /// Tokens without a generated part.
    pub(crate) fn of(prompt: &'a [TokenId]) -> Self {
        Self { prompt, output: &[] }
    }

    pub(crate) fn len(self) -> usize {
        self.prompt.len() + self.output.len()
    }

    pub(crate) fn get(self, index: usize) -> Option<TokenId> {
        match index.checked_sub(self.prompt.len()) {
            None => self.prompt.get(index).copied(),
            Some(index) => self.output.get(index).copied(),
        }
    }

    /// The tokens in this range; positions beyond the end are skipped.
    pub(crate) fn range(self, places: Range<usize>) -> impl Iterator<Item = TokenId> + Clone + 'a {
        let n_prompt = self.prompt.len();
        let part = |ids: &'a [TokenId], Range { start, end }: Range<usize>| {
            let end = end.min(ids.len());
            ids.get(start.min(end)..end).unwrap_or_default().iter().copied()
        };
        let behind = places.start.saturating_sub(n_prompt)..places.end.saturating_sub(n_prompt);
        part(self.prompt, places).chain(part(self.output, behind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids_index_prompt_and_output_as_one_sequence() {
        let whole: Vec<TokenId> = (0..7).collect();
        for n_prompt in 0..=7 {
            let (prompt, output) = whole.split_at(n_prompt);
            let ids = TokenIds { prompt, output };
            assert_eq!(ids.len(), 7);
            for start in 0..9 {
                assert_eq!(ids.get(start), whole.get(start).copied());
                for end in 0..9 {
                    let expected = whole.get(start.min(7)..end.min(7)).unwrap_or_default();
                    assert_eq!(ids.range(start..end).collect::<Vec<_>>(), expected, "{n_prompt}: {start}..{end}");
                }
            }
        }
    }
}
