//! A model and its cache, step by step.
//!
//! On a GPU, steps that only decode are recorded once they have come up a few times, and done again at a word from then
//! on: telling the GPU of each launch takes the processor longer than many a launch takes. Such a step is written down
//! with a place for what is different in each: token ids, slots, tables of pages, positions. Steps are alike if they have
//! as many rows and, rounded up, as many pages.

use std::collections::HashMap;

use burn::tensor::Tensor;

use crate::{
    TokenId,
    attention::{AttentionContext, Pass},
    error::{Error, Result},
    gpt::Gpt,
    kv_cache::{KvCache, StepPart},
    ops::{self, Ints, KvDtype, Places, Recording, Upload},
};

/// Steps of one shape that are run before the next is recorded: recording takes as long as three.
const RUNS_BEFORE: u32 = 2;
/// Shapes that are kept, the least recently used going first: each recording keeps the memory of its step.
const MAX_SHAPES: usize = 32;
/// Rows of a recorded step whose logits are recorded with it, at most: for more, the memory would be large and the launch
/// makes no difference.
const MAX_LOGIT_ROWS: usize = 8;

/// A model with its cache.
#[derive(Debug)]
pub struct Stepper {
    // First, so that it goes first: recordings know where the others are.
    recorded: Option<RecordedSteps>,
    gpt: Gpt,
    cache: KvCache,
}

/// Recorded steps of one model and one cache, by shape.
#[derive(Debug, Default)]
struct RecordedSteps {
    shapes: HashMap<Vec<usize>, Shape>,
    clock: u64,
    /// That were done again.
    n_launches: usize,
}

#[derive(Debug, Default)]
struct Shape {
    n_runs: u32,
    last_used: u64,
    step: Option<RecordedStep>,
}

/// A step that can be done again.
#[derive(Debug)]
struct RecordedStep {
    recording: Recording,
    /// Where it reads what it is told: token ids, then the others in the order of [`Pass::uploads`].
    places: Places,
    output: Stepped,
}

/// What came out of a step: is there until the next.
#[derive(Clone, Debug)]
pub struct Stepped {
    hidden: Tensor<2>,
    logits: Option<Tensor<2>>,
}

impl Stepper {
    /// Allocates a cache of `n_pages` pages.
    pub fn new(gpt: Gpt, n_pages: usize, kv_dtype: KvDtype) -> Self {
        let cache = KvCache::new(gpt.config(), n_pages, kv_dtype, &gpt.device());
        Self { recorded: None, gpt, cache }
    }

    /// From now on, steps are recorded, if this is a GPU that can: which it is made to show, with a step that comes to
    /// nothing. Nothing may be in the cache yet: it is lost where there is no recording.
    pub fn record(&mut self) {
        if !ops::is_gpu(&self.gpt.device()) || self.recorded.is_some() {
            return;
        }
        self.recorded = Some(RecordedSteps::default());
        let mut try_out = || {
            let parts = &mut [StepPart { table: &mut self.cache.table(), n_new: 1 }];
            self.step(&[0], parts).map(drop)
        };
        if let Err(error) = (0..=RUNS_BEFORE).try_for_each(|_| try_out()) {
            tracing::warn!(%error, "decoding steps are not recorded on this device, so each launch is told anew");
            self.recorded = None;
            self.cache.renew();
        }
    }

    /// The model.
    pub fn gpt(&self) -> &Gpt {
        &self.gpt
    }

    /// The cache.
    pub fn cache(&self) -> &KvCache {
        &self.cache
    }

    /// Steps that are recorded at present.
    pub fn n_recorded(&self) -> usize {
        let shapes = self.recorded.iter().flat_map(|recorded| recorded.shapes.values());
        shapes.filter(|shape| shape.step.is_some()).count()
    }

    /// Launches of recorded steps that were done again so far.
    pub fn n_launches_again(&self) -> usize {
        self.recorded.as_ref().map_or(0, |recorded| recorded.n_launches)
    }

    /// Appends tokens to sequences: `token_ids` are those of all `parts`, one part after the other, at least one.
    ///
    /// # Errors
    /// [`Error::Execution`] when the pages do not suffice, or the device fails.
    pub fn step(&mut self, token_ids: &[TokenId], parts: &mut [StepPart<'_>]) -> Result<Stepped> {
        let Self { recorded, gpt, cache } = self;
        let device = gpt.device();
        let step = cache.step(parts).map_err(|error| Error::Execution { what: error.to_string() })?;
        let mut pass = Pass::new(gpt.config(), AttentionContext::Paged(step), &device);
        let ids = Ints::new(token_ids.iter().map(|&id| id as i32).collect(), &device);
        let run = |mut pass: Pass<'_>| Ok(Stepped { hidden: gpt.run(ids.tensor(), &mut pass), logits: None });
        let Some(steps) = recorded else { return run(pass) };
        let Some((uploads, sizes)) = pass.uploads() else { return run(pass) };
        let shape = steps.shape(sizes);
        if let Some(step) = &mut shape.step {
            let output = step.again(&[&[Upload::Ints(&ids)], uploads.as_slice()].concat())?;
            steps.n_launches += step.recording.n_launches();
            return Ok(output);
        }
        shape.n_runs += 1;
        if shape.n_runs <= RUNS_BEFORE {
            return run(pass);
        }
        shape.step.insert(RecordedStep::new(gpt, &ids, &mut pass)?).replay()
    }

    /// The final hidden states of rows of the last step, by number: `[rows.len(), d_model]`.
    pub fn hidden(&self, stepped: &Stepped, rows: &[usize]) -> Tensor<2> {
        ops::take_rows(stepped.hidden.clone(), rows)
    }

    /// Scores of what comes next for rows of the last step, by number: `[rows.len(), vocab_size]`.
    pub fn logits(&self, stepped: &Stepped, rows: &[usize]) -> Tensor<2> {
        match &stepped.logits {
            Some(logits) => ops::take_rows(logits.clone(), rows),
            None => self.gpt.logits(self.hidden(stepped, rows)),
        }
    }
}

impl RecordedSteps {
    /// What is known of the shape of a step with these `sizes`.
    fn shape(&mut self, sizes: Vec<usize>) -> &mut Shape {
        self.clock += 1;
        if self.shapes.len() == MAX_SHAPES
            && !self.shapes.contains_key(&sizes)
            && let Some(oldest) = self.shapes.iter().min_by_key(|(_, shape)| shape.last_used)
        {
            let oldest = oldest.0.clone();
            self.shapes.remove(&oldest);
        }
        let shape = self.shapes.entry(sizes).or_default();
        shape.last_used = self.clock;
        shape
    }
}

impl RecordedStep {
    /// Records what `pass` does. What it made is there after [`replay`](Self::replay).
    fn new(gpt: &Gpt, ids: &Ints, pass: &mut Pass<'_>) -> Result<Self> {
        // All of them, since an upload cannot be recorded.
        let uploads = pass.uploads().into_iter().flat_map(|(uploads, _)| uploads);
        let uploads: Vec<Upload<'_>> = std::iter::once(Upload::Ints(ids)).chain(uploads).collect();
        let places = Places::new(&uploads, &gpt.device());
        let (recording, output) = Recording::new(&gpt.device(), || {
            let hidden = gpt.run(ids.tensor(), pass);
            let logits = (ids.host().len() <= MAX_LOGIT_ROWS).then(|| gpt.logits(hidden.clone()));
            Stepped { hidden, logits }
        })?;
        Ok(Self { recording, places, output })
    }

    /// The step for other tokens elsewhere.
    fn again(&mut self, uploads: &[Upload<'_>]) -> Result<Stepped> {
        self.places.overwrite(uploads);
        self.replay()
    }

    #[expect(unsafe_code, reason = "a recording knows addresses, not tensors")]
    fn replay(&self) -> Result<Stepped> {
        // SAFETY: what the step reads and writes are the weights and pools of its `Stepper`, which has both for as long as its
        // recordings, and changes them in place only; and its own places and output. The stepper is borrowed mutably,
        // so nobody else runs anything over its pools.
        unsafe { self.recording.replay() }?;
        Ok(self.output.clone())
    }
}
