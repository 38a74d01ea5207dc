//! Generation of many texts at once, on the paged kernels of serving: each step appends to every running text, and texts start as
//! others end. A text does not depend on those beside it.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::{Result, ensure};
use hearth_model::{
    TokenId,
    gpt::Gpt,
    kv_cache::{PAGE_SIZE, PageTable, StepPart},
    model_runner::{ModelRunner, StepOutput},
    ops::{self, KvDtype},
    read_logits::read_logits,
    sampling::{
        LogitRow, RowNeeds, Sampler, SamplingParams,
        beam::{BeamKind, BeamParams, BeamSearch},
    },
};

use super::stop_text::StopText;

/// Rows that decode in a step: enough for the kernels of matrices to be bound by arithmetic.
const DECODING_ROWS: usize = 64;
/// Rows of prompts in a step, besides.
const PREFILL_ROWS: usize = 512;

/// Size of the KV cache, unless one text needs more: 1 GiB, as in serving.
const CACHE_BYTES: usize = 1 << 30;

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Decoding {
    /// One after the other, with these parameters.
    Sampling(SamplingParams),
    /// By a search with this many partial texts, whose best text is taken.
    Beams {
        /// Number of partial texts.
        width: usize,
        /// How they are ranked.
        kind: BeamKind,
    },
}

/// A text to generate.
#[derive(Clone, Debug)]
pub struct GenerationTask {
    /// What it continues, at least one token.
    pub prompt_ids: Vec<TokenId>,
    /// How.
    pub decoding: Decoding,
    /// Tells texts with the same parameters and prompt apart: each number has random numbers of its own.
    pub number: u32,
    /// Fewest new tokens: before, the text cannot end.
    pub min_tokens: usize,
    /// Most new tokens, at least 1.
    pub max_tokens: usize,
}

/// When texts end, besides at their length.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    /// Tokens that end a text; they are not part of it.
    pub end_ids: Arc<BTreeSet<TokenId>>,
    /// Strings that end a text.
    pub stop: Option<StopText>,
}

/// A generated text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The new tokens, without the token that ended the text.
    pub token_ids: Vec<TokenId>,
    /// Whether the text ended, rather than reached its length.
    pub is_ended: bool,
}

/// Generates texts with a model.
#[derive(Debug)]
pub struct Generator {
    gpt: Gpt,
    kv_dtype: KvDtype,
    endings: Endings,
}

/// A text that is being generated.
#[derive(Debug)]
struct Running<'a> {
    /// Its index among the tasks.
    index: usize,
    task: &'a GenerationTask,
    state: State,
    /// The running sequences: one, or the branches of a search.
    branches: Vec<Branch>,
    n_reserved: usize,
}

#[derive(Debug)]
enum State {
    Sampling(Box<Sampler>),
    Beams(Box<BeamSearch>),
}

#[derive(Debug)]
struct Branch {
    table: PageTable,
    output: Vec<TokenId>,
    /// Tokens that are not in the cache yet.
    pending: Vec<TokenId>,
}

/// A row of a step that predicts the next token of a branch.
#[derive(Clone, Copy, Debug)]
struct WantedRow {
    running: usize,
    branch: usize,
    row: usize,
}

impl Generator {
    /// A generator on the model's device. The KV cache has the dtype that serving would choose.
    ///
    /// # Errors
    /// The device does not support it.
    pub fn new(gpt: &Gpt, endings: Endings) -> Result<Self> {
        let kv_dtype = KvDtype::choose(None, gpt.dtype(), &gpt.device())?;
        Ok(Self { gpt: gpt.clone(), kv_dtype, endings })
    }

    /// Generates the texts of `tasks`, in their order. `progress` is told the number of texts that are done.
    ///
    /// # Errors
    /// A prompt is empty or does not fit the model's context with the tokens to come, a parameter is out of range, or the device
    /// fails.
    pub fn generate(&self, tasks: &[GenerationTask], progress: &mut dyn FnMut(usize)) -> Result<Vec<Generated>> {
        tasks.iter().try_for_each(|task| self.check(task))?;
        let page_bytes = PAGE_SIZE * self.gpt.kv_bytes_per_token(self.kv_dtype)?;
        let largest = tasks.iter().map(pages_of).max().unwrap_or(0);
        let all: usize = tasks.iter().map(pages_of).sum();
        // Room for the largest text in any case.
        let n_pages = all.min((CACHE_BYTES / page_bytes.max(1)).max(largest));
        let mut runner = ModelRunner::new(self.gpt.clone(), n_pages.max(1), self.kv_dtype)?;
        runner.capture_steps();
        let mut generated = vec![Generated::default(); tasks.len()];
        let (mut running, mut next, mut n_done): (Vec<Running<'_>>, usize, usize) = (Vec::new(), 0, 0);
        while n_done < tasks.len() {
            while let Some(task) = tasks.get(next) {
                let n_rows: usize = running.iter().map(|running| rows_of(running.task)).sum();
                let n_reserved: usize = running.iter().map(|running| running.n_reserved).sum();
                let fits = n_rows + rows_of(task) <= DECODING_ROWS && n_reserved + pages_of(task) <= n_pages;
                if !fits && !running.is_empty() {
                    break;
                }
                running.push(self.start(next, task, &runner));
                next += 1;
            }
            let (output, wanted) = step(&mut runner, &mut running)?;
            let ended = self.advance(&runner, &output, &wanted, &mut running)?;
            n_done += ended.len();
            for (at, text) in ended.into_iter().rev() {
                generated[running.remove(at).index] = text;
            }
            progress(n_done);
        }
        Ok(generated)
    }

    fn check(&self, task: &GenerationTask) -> Result<()> {
        let config = self.gpt.config();
        let (n_prompt, limit) = (task.prompt_ids.len(), config.max_seq_len);
        ensure!(n_prompt > 0, "a prompt is empty: it must have at least one token");
        ensure!(
            n_prompt + task.max_tokens <= limit,
            "a prompt of {n_prompt} tokens with {} tokens to generate does not fit the model's context of {limit}\nhint: use \
             shorter prompts, or generate fewer tokens: `--max-tokens`",
            task.max_tokens
        );
        if let Decoding::Sampling(params) = &task.decoding {
            params.validate(config.vocab_size)?;
        }
        Ok(())
    }

    fn start<'a>(&self, index: usize, task: &'a GenerationTask, runner: &ModelRunner) -> Running<'a> {
        let state = match &task.decoding {
            Decoding::Sampling(params) => {
                State::Sampling(Box::new(Sampler::new(params.clone(), task.number, &task.prompt_ids)))
            }
            Decoding::Beams { width, kind } => {
                let kind = match *kind {
                    // Each number its own noise.
                    BeamKind::Stochastic { seed } => {
                        BeamKind::Stochastic { seed: seed ^ (u64::from(task.number) << 32) }
                    }
                    kind => kind,
                };
                State::Beams(Box::new(BeamSearch::new(BeamParams {
                    width: *width,
                    kind,
                    temperature: 0.0,
                    end_ids: self.endings.end_ids.clone(),
                    min_tokens: task.min_tokens,
                    max_tokens: task.max_tokens,
                    n_top: None,
                })))
            }
        };
        let table = runner.cache().table().of_prompt(task.prompt_ids.len());
        let branch = Branch { table, output: Vec::new(), pending: task.prompt_ids.clone() };
        Running { index, task, state, branches: vec![branch], n_reserved: pages_of(task) }
    }

    /// Passes each wanted row to its text. Returns the texts that ended, with their indices among the running ones, ascending.
    fn advance(
        &self,
        runner: &ModelRunner,
        output: &StepOutput,
        wanted: &[WantedRow],
        running: &mut [Running<'_>],
    ) -> Result<Vec<(usize, Generated)>> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let rows: Vec<usize> = wanted.iter().map(|wanted| wanted.row).collect();
        let needs: Vec<RowNeeds> = wanted.iter().map(|wanted| running[wanted.running].needs(&self.endings)).collect();
        let logits = read_logits(runner.logits(output, &rows), &needs)?;
        // Texts are independent here, and each row is a scan of the vocabulary.
        let mut advances: Vec<Advance<'_, '_>> =
            running.iter_mut().map(|running| Advance { running, rows: Vec::new(), result: Ok(None) }).collect();
        for (wanted, row) in wanted.iter().zip(logits.iter()) {
            advances[wanted.running].rows.push((wanted.branch, row));
        }
        ops::parallel_for_each(&mut advances, |Advance { running, rows, result }| {
            if !rows.is_empty() {
                *result = running.advance(rows, &self.endings);
            }
        });
        let mut ended = Vec::new();
        for (at, advance) in advances.into_iter().enumerate() {
            ended.extend(advance.result?.map(|text| (at, text)));
        }
        Ok(ended)
    }
}

/// A text, the rows of its branches, and what came of them.
struct Advance<'a, 'task> {
    running: &'a mut Running<'task>,
    rows: Vec<(usize, LogitRow<'a>)>,
    result: Result<Option<Generated>>,
}

/// Sequences of a text.
fn rows_of(task: &GenerationTask) -> usize {
    match &task.decoding {
        Decoding::Sampling(_) => 1,
        Decoding::Beams { width, .. } => *width,
    }
}

/// The most pages that a text needs: each branch may have all of its output to itself, and a copy of the prompt's last page.
fn pages_of(task: &GenerationTask) -> usize {
    let n_prompt = task.prompt_ids.len();
    let own = (n_prompt + task.max_tokens).div_ceil(PAGE_SIZE) - n_prompt / PAGE_SIZE;
    n_prompt.div_ceil(PAGE_SIZE) + rows_of(task) * own
}

/// Appends the pending tokens of all branches; of prompts, as many as a step has room for.
fn step(runner: &mut ModelRunner, running: &mut [Running<'_>]) -> Result<(StepOutput, Vec<WantedRow>)> {
    let (mut token_ids, mut wanted, mut parts) = (Vec::new(), Vec::new(), Vec::new());
    let mut n_prefill = PREFILL_ROWS;
    for (at, running) in running.iter_mut().enumerate() {
        for (number, branch) in running.branches.iter_mut().enumerate() {
            let n_new = match branch.pending.len() {
                1 => 1,
                len => len.min(n_prefill),
            };
            if n_new == 0 {
                continue;
            }
            if branch.pending.len() > 1 {
                n_prefill -= n_new;
            }
            token_ids.extend(branch.pending.drain(..n_new));
            if branch.pending.is_empty() {
                wanted.push(WantedRow { running: at, branch: number, row: token_ids.len() - 1 });
            }
            parts.push(StepPart { table: &mut branch.table, n_new, adapter: None });
        }
    }
    Ok((runner.step(&token_ids, &mut parts)?, wanted))
}

impl Running<'_> {
    fn needs(&self, endings: &Endings) -> RowNeeds {
        match &self.state {
            State::Sampling(sampler) => sampler.needs(&endings.end_ids, &[]),
            State::Beams(_) => RowNeeds::Whole,
        }
    }

    /// Chooses the next tokens from the rows of all branches. Returns the text if it has ended.
    fn advance(&mut self, rows: &[(usize, LogitRow<'_>)], endings: &Endings) -> Result<Option<Generated>> {
        match &mut self.state {
            State::Sampling(sampler) => {
                let (Some(branch), Some((_, row))) = (self.branches.first_mut(), rows.first()) else { return Ok(None) };
                let position = self.task.prompt_ids.len() + branch.output.len();
                let may_end = branch.output.len() >= self.task.min_tokens;
                let id = match may_end {
                    true => sampler.sample(row, position)?,
                    false => sampler.sample(row.without(&endings.end_ids), position)?,
                };
                sampler.accept(id);
                if may_end && endings.end_ids.contains(&id) {
                    return Ok(Some(Generated { token_ids: std::mem::take(&mut branch.output), is_ended: true }));
                }
                branch.output.push(id);
                branch.pending.push(id);
                let is_ended = may_end && endings.stop.as_ref().is_some_and(|stop| stop.is_in(&branch.output));
                if is_ended || branch.output.len() >= self.task.max_tokens {
                    return Ok(Some(Generated { token_ids: std::mem::take(&mut branch.output), is_ended }));
                }
                Ok(None)
            }
            State::Beams(search) => {
                for (branch, row) in rows {
                    let output = &self.branches[*branch].output;
                    let may_stop = output.len() >= self.task.min_tokens;
                    let stop = endings.stop.as_ref().filter(|_| may_stop);
                    let completes = |id| stop.is_some_and(|stop| stop.is_completed(output, id));
                    search.expand(*branch, row.whole()?, completes)?;
                }
                let parents = search.select();
                if parents.is_empty() {
                    let nothing = BeamSearch::new(BeamParams { width: 1, ..search.params().clone() });
                    return Ok(Some(best_of(std::mem::replace(search, nothing), endings)));
                }
                let grown = parents.iter().zip(search.beams()).filter_map(|(&parent, beam)| {
                    let id = *beam.token_ids.last()?;
                    let table = self.branches[parent].table.fork();
                    Some(Branch { table, output: beam.token_ids.clone(), pending: vec![id] })
                });
                self.branches = grown.collect();
                Ok(None)
            }
        }
    }
}

/// The best text of a search that is over.
fn best_of(search: BeamSearch, endings: &Endings) -> Generated {
    let Some(best) = search.into_best(1).into_iter().next() else { return Generated::default() };
    let mut token_ids = best.token_ids;
    if best.is_ended && token_ids.last().is_some_and(|id| endings.end_ids.contains(id)) {
        token_ids.pop();
    }
    Generated { token_ids, is_ended: best.is_ended }
}
