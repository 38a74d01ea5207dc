//! Log-probabilities of the tokens of texts, on the paged kernels of serving: many texts a step, and a beginning that texts
//! share is computed once.

use anyhow::{Result, ensure};
use hearth_model::{
    TokenId,
    gpt::Gpt,
    kv_cache::{PAGE_SIZE, PageTable, StepPart},
    model_runner::{ModelRunner, StepOutput},
    ops::KvDtype,
    target_logprobs::target_logprobs,
};

/// Numbers of logits in memory at once: 64 MiB.
const LOGITS_AT_ONCE: usize = 1 << 24;

/// Rows of a step: enough for the kernels of matrices to be bound by arithmetic.
const ROWS_PER_STEP: usize = 1024;

/// Texts with a common beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextGroup {
    /// The tokens that all texts begin with; may be empty.
    pub prefix: Vec<TokenId>,
    /// What follows in each text.
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

    /// Texts whose tokens from `first_scored[i]` on are scored. What they all have in common before that is their prefix.
    pub fn of_texts(texts: Vec<Vec<TokenId>>, first_scored: &[usize]) -> Self {
        let at = |position: usize| texts.first().and_then(|text| text.get(position));
        let most = first_scored.iter().map(|first| first.saturating_sub(1)).min().unwrap_or(0);
        let n_common = (0..most).take_while(|&n| texts.iter().all(|text| text.get(n) == at(n))).count();
        // With a single text there is nothing to share.
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

/// A part of a text that is being computed.
#[derive(Debug)]
struct Running<'a> {
    table: PageTable,
    ids: &'a [TokenId],
    n_done: usize,
    /// The tokens from here on are scored; `usize::MAX`: none.
    first_scored: usize,
    logprobs: Vec<f32>,
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

    /// The same with another number of rows per step.
    #[must_use]
    pub fn with_rows_per_step(self, rows_per_step: usize) -> Self {
        Self { rows_per_step, ..self }
    }

    /// The log-probabilities in nats of the scored tokens of each branch of each group. `progress` is told the number of
    /// groups that are done.
    ///
    /// # Errors
    /// A text is longer than the model's context, a branch scores its first token, an id is outside the vocabulary, or the
    /// device fails.
    pub fn logprobs(&self, groups: &[TextGroup], progress: &mut dyn FnMut(usize)) -> Result<Vec<Vec<Vec<f32>>>> {
        groups.iter().try_for_each(|group| self.check(group))?;
        let batches = self.batches(groups);
        let n_pages = batches.iter().map(|batch| batch.iter().map(TextGroup::n_pages).sum()).max().unwrap_or(0);
        let mut runner = ModelRunner::new(self.gpt.clone(), n_pages.max(1), self.kv_dtype);
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
        }
        Ok(())
    }

    /// Consecutive groups that are computed together: as many as fill a step twice, so that the last step of each is the only
    /// one that may be small.
    fn batches<'a>(&self, groups: &'a [TextGroup]) -> Vec<&'a [TextGroup]> {
        let (mut batches, mut start, mut n_rows) = (Vec::new(), 0, 0);
        for (at, group) in groups.iter().enumerate() {
            if at > start && n_rows + group.n_rows() > 2 * self.rows_per_step {
                batches.push(&groups[start..at]);
                (start, n_rows) = (at, 0);
            }
            n_rows += group.n_rows();
        }
        if start < groups.len() {
            batches.push(&groups[start..]);
        }
        batches
    }

    fn run_batch(&self, runner: &mut ModelRunner, batch: &[TextGroup]) -> Result<Vec<Vec<Vec<f32>>>> {
        let prefix = |group: &'_ TextGroup, table: PageTable| table.of_prompt(group.prefix.len());
        let mut prefixes: Vec<Running<'_>> = batch
            .iter()
            .map(|group| Running {
                table: prefix(group, runner.cache().table()),
                ids: &group.prefix,
                n_done: 0,
                first_scored: usize::MAX,
                logprobs: Vec::new(),
            })
            .collect();
        self.run(runner, &mut prefixes)?;
        let mut running: Vec<Running<'_>> = batch
            .iter()
            .zip(&prefixes)
            .flat_map(|(group, Running { table, .. })| {
                group.branches.iter().map(|branch| Running {
                    table: table.fork().of_prompt(group.prefix.len() + branch.ids.len()),
                    ids: &branch.ids,
                    n_done: 0,
                    first_scored: branch.first_scored,
                    logprobs: Vec::new(),
                })
            })
            .collect();
        self.run(runner, &mut running)?;
        drop(prefixes);
        let mut logprobs = running.into_iter().map(|running| running.logprobs);
        Ok(batch.iter().map(|group| logprobs.by_ref().take(group.branches.len()).collect()).collect())
    }

    /// Appends all tokens to their tables, a step of at most `rows_per_step` rows after the other.
    fn run(&self, runner: &mut ModelRunner, running: &mut [Running<'_>]) -> Result<()> {
        loop {
            let (mut token_ids, mut n_new) = (Vec::new(), Vec::with_capacity(running.len()));
            for text in running.iter() {
                let n = (text.ids.len() - text.n_done).min(self.rows_per_step - token_ids.len());
                token_ids.extend_from_slice(&text.ids[text.n_done..][..n]);
                n_new.push(n);
            }
            if token_ids.is_empty() {
                return Ok(());
            }
            let mut parts: Vec<StepPart<'_>> = running
                .iter_mut()
                .zip(&n_new)
                .filter(|(_, n_new)| **n_new > 0)
                .map(|(text, &n_new)| StepPart { table: &mut text.table, n_new })
                .collect();
            let output = runner.step(&token_ids, &mut parts)?;
            self.take(runner, &output, running, &n_new)?;
        }
    }

    /// Takes from a step what is scored, and counts its rows.
    fn take(
        &self,
        runner: &ModelRunner,
        output: &StepOutput,
        running: &mut [Running<'_>],
        n_new: &[usize],
    ) -> Result<()> {
        let (mut rows, mut targets, mut owners) = (Vec::new(), Vec::new(), Vec::new());
        let mut start = 0;
        for (owner, (text, &n_new)) in running.iter_mut().zip(n_new).enumerate() {
            for offset in 0..n_new {
                // The row of one token predicts the next.
                let predicted = text.n_done + offset + 1;
                if predicted >= text.first_scored && predicted < text.ids.len() {
                    rows.push(start + offset);
                    targets.push(text.ids[predicted]);
                    owners.push(owner);
                }
            }
            text.n_done += n_new;
            start += n_new;
        }
        let vocab_size = self.gpt.config().vocab_size;
        let n_at_once = (LOGITS_AT_ONCE / vocab_size).max(1);
        let chunks = rows.chunks(n_at_once).zip(targets.chunks(n_at_once)).zip(owners.chunks(n_at_once));
        for ((rows, targets), owners) in chunks {
            ensure!(
                targets.iter().all(|&id| (id as usize) < vocab_size),
                "a text has a token id beyond the vocabulary of {vocab_size}"
            );
            let logprobs = target_logprobs(runner.logits(output, rows), targets)?;
            owners.iter().zip(logprobs).for_each(|(&owner, logprob)| running[owner].logprobs.push(logprob));
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_row_that_predicts() {
        // The fourth token is scored first, so that the third is the last row needed: two are shared.
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
