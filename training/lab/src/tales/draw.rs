//! Chooses at random how a tale continues.

use super::{derivation::Chooser, walk::Choice};
pub(super) use crate::draw::Draw;

impl Chooser for Draw {
    fn choose(&mut self, choices: &[Choice<'_>]) -> usize {
        let total = choices.iter().map(|choice| choice.weight).sum();
        let mut left = self.below(total);
        let chosen = choices.iter().position(|choice| {
            let is_here = left < choice.weight;
            left = left.saturating_sub(choice.weight);
            is_here
        });
        chosen.unwrap_or_default()
    }
}
