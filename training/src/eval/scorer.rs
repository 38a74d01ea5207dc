//! Log-probabilities of the tokens of texts, on the paged kernels of serving: many texts a step, and a beginning that texts
//! share is computed once.

use anyhow::{Result, bail, ensure};
use hearth_model::{
    TokenId,
    decode::{
        model_runner::{ModelRunner, StepOutput},
        target_logprobs::target_logprobs,
    },
    gpt::{Gpt, kv_cache::PAGE_SIZE},
    ops::KvDtype,
};

use super::packed::{self, PackedRows, PackedText, ROWS_PER_STEP};

/// Numbers of logits in memory at once: 64 MiB.
const LOGITS_AT_ONCE: usize = 1 << 24;

/// Texts with a common beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextGroup {
    /// The tokens that all texts begin with; may be empty.
    pub prefix: Vec<TokenId>,
    /// The different continuations of the texts.
    pub branches: Vec<Branch>,
}

/// The rest of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its tokens.
    pub ids: Vec<TokenId>,
    /// The index in `ids` of the first token to score, at least 1: the row before it predicts it.
    pub first_scored: usize,
}

impl TextGroup {
    /// A text whose tokens from `first_scored` on are scored.
    pub fn of_text(ids: Vec<TokenId>, first_scored: usize) -> Self {
        Self { prefix: Vec::new(), branches: vec![Branch { ids, first_scored }] }
    }

    /// Texts whose tokens from `first_scored[i]` on are scored. The common beginning of the tokens before these is
    /// their prefix.
    pub fn of_texts(texts: Vec<Vec<TokenId>>, first_scored: &[usize]) -> Self {
        let at = |position: usize| texts.first().and_then(|text| text.get(position));
        let most = first_scored.iter().map(|first| first.saturating_sub(1)).min().unwrap_or(0);
        let n_common = (0..most).take_while(|&n| texts.iter().all(|text| text.get(n) == at(n))).count();
        // A single text has nothing to share.
        let n_common = if texts.len() > 1 { n_common } else { 0 };
        let prefix = texts.first().map_or_else(Vec::new, |text| text[..n_common].to_vec());
        let branches = texts.into_iter().zip(first_scored);
        let branches = branches
            .map(|(mut ids, first)| Branch { ids: ids.split_off(n_common), first_scored: first - n_common })
            .collect();
        Self { prefix, branches }
    }

    fn n_rows(&self) -> usize {
        self.prefix.len() + self.branches.iter().map(|branch| branch.ids.len()).sum::<usize>()
    }

    /// Pages of the whole group, each branch with a copy of the last page of the prefix.
    fn n_pages(&self) -> usize {
        let n_prefix = self.prefix.len();
        let own = |branch: &Branch| (n_prefix + branch.ids.len()).div_ceil(PAGE_SIZE) - n_prefix / PAGE_SIZE;
        n_prefix.div_ceil(PAGE_SIZE) + self.branches.iter().map(own).sum::<usize>()
    }
}

/// Scores texts with a model.
#[derive(Debug)]
pub struct Scorer {
    gpt: Gpt,
    kv_dtype: KvDtype,
    rows_per_step: usize,
}

impl Scorer {
    /// A scorer on the model's device. The KV cache has the dtype that serving would choose.
    ///
    /// # Errors
    /// The device does not support it.
    pub fn new(gpt: &Gpt) -> Result<Self> {
        let kv_dtype = KvDtype::choose(None, gpt.dtype(), &gpt.device())?;
        Ok(Self { gpt: gpt.clone(), kv_dtype, rows_per_step: ROWS_PER_STEP })
    }

    /// Sets another number of rows per step.
    #[must_use]
    pub fn with_rows_per_step(self, rows_per_step: usize) -> Self {
        Self { rows_per_step, ..self }
    }

    /// The log-probabilities in nats of the scored tokens of each branch of each group. Reports the number of finished
    /// groups to `progress`.
    ///
    /// # Errors
    /// A text is longer than the model's context, a branch scores its first token, an id is outside the vocabulary, or the
    /// device fails.
    pub fn logprobs(&self, groups: &[TextGroup], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<Vec<f32>>>> {
        groups.iter().try_for_each(|group| self.check(group))?;
        let batches = packed::batches(groups, self.rows_per_step, TextGroup::n_rows);
        let n_pages = batches.iter().map(|batch| batch.iter().map(TextGroup::n_pages).sum()).max().unwrap_or(0);
        let mut runner = ModelRunner::with_states(self.gpt.clone(), n_pages.max(1), 2 * n_pages.max(1), self.kv_dtype)?;
        let mut all = Vec::with_capacity(groups.len());
        for batch in batches {
            all.extend(self.run_batch(&mut runner, batch)?);
            progress(all.len());
        }
        Ok(all)
    }

    fn check(&self, group: &TextGroup) -> Result<()> {
        let limit = self.gpt.config().max_seq_len;
        for branch in &group.branches {
            let n_tokens = group.prefix.len() + branch.ids.len();
            ensure!(n_tokens <= limit, "a text of {n_tokens} tokens does not fit the model's context of {limit}");
            ensure!(branch.first_scored > 0, "the first token of a text has nothing before it that predicts it");
            let vocab_size = self.gpt.config().vocab_size;
            if let Some(id) = branch.ids.iter().find(|id| **id as usize >= vocab_size) {
                bail!("a text has token id {id}, but the vocabulary has {vocab_size}");
            }
        }
        Ok(())
    }

    fn run_batch(&self, runner: &mut ModelRunner, batch: &[TextGroup]) -> Result<Vec<Vec<Vec<f32>>>> {
        let mut prefixes: Vec<PackedText<'_>> = batch
            .iter()
            .map(|group| PackedText { table: runner.cache().table(), ids: &group.prefix, second_text: None })
            .collect();
        packed::run(runner, &mut prefixes, self.rows_per_step, &mut |_, _, _| Ok(()))?;
        let branches = || {
            batch
                .iter()
                .zip(&prefixes)
                .flat_map(|(group, prefix)| group.branches.iter().map(move |branch| (prefix, branch)))
        };
        let mut texts: Vec<PackedText<'_>> = branches()
            .map(|(prefix, branch)| PackedText { table: prefix.table.fork(), ids: &branch.ids, second_text: None })
            .collect();
        let branches: Vec<&Branch> = branches().map(|(_, branch)| branch).collect();
        let mut logprobs = vec![Vec::new(); branches.len()];
        packed::run(runner, &mut texts, self.rows_per_step, &mut |runner, output, rows| {
            self.take(runner, output, (rows, &branches), &mut logprobs)
        })?;
        let mut logprobs = logprobs.into_iter();
        Ok(batch.iter().map(|group| logprobs.by_ref().take(group.branches.len()).collect()).collect())
    }

    /// Takes the scored rows from a step: the row of a token predicts the next one.
    fn take(
        &self,
        runner: &ModelRunner,
        output: &StepOutput,
        (packed, branches): (&[PackedRows], &[&Branch]),
        logprobs: &mut [Vec<f32>],
    ) -> Result<()> {
        let mut wanted = Vec::new();
        for rows in packed {
            let Branch { ids, first_scored } = branches[rows.text];
            let first = first_scored - 1;
            for at in rows.start.max(first)..(rows.start + rows.n_rows).min(ids.len() - 1) {
                wanted.push((rows.row + at - rows.start, ids[at + 1], rows.text));
            }
        }
        let vocab_size = self.gpt.config().vocab_size;
        for wanted in wanted.chunks((LOGITS_AT_ONCE / vocab_size).max(1)) {
            let rows: Vec<usize> = wanted.iter().map(|(row, _, _)| *row).collect();
            let targets: Vec<TokenId> = wanted.iter().map(|(_, target, _)| *target).collect();
            let found = target_logprobs(runner.logits(output, &rows), &targets)?;
            wanted.iter().zip(found).for_each(|((_, _, text), logprob)| logprobs[*text].push(logprob));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_group_prefix_excludes_the_row_predicting_the_first_scored_token() {
        // The first scored token is the fourth. The row of the third predicts it, so the prefix ends before the third.
        let group = TextGroup::of_texts(vec![vec![1, 2, 3, 4, 5], vec![1, 2, 3, 6]], &[3, 3]);
        assert_eq!(group.prefix, [1, 2]);
        assert_eq!(group.branches[0], Branch { ids: vec![3, 4, 5], first_scored: 1 });
        assert_eq!(group.branches[1], Branch { ids: vec![3, 6], first_scored: 1 });
        let group = TextGroup::of_texts(vec![vec![1, 2, 3, 4, 5], vec![1, 9, 3, 6]], &[3, 4]);
        assert_eq!((group.prefix.as_slice(), group.branches[0].first_scored), ([1].as_slice(), 2));
        let group = TextGroup::of_texts(vec![vec![1, 2, 3]], &[1]);
        assert_eq!(group, TextGroup::of_text(vec![1, 2, 3], 1));
    }
}
