//! The sequences of a step over the cache, and the table that describes them to the GPU's attention kernel.

use std::sync::OnceLock;

use burn::tensor::Device;

use super::{AttentionOptions, AttentionPlan, AttentionStep, BLOCK_LEN, Ints, PAGE_SIZE, PagedRows, TILE};

/// The sequences of a step.
#[derive(Clone, Debug)]
pub(crate) struct PagedSequences {
    sequences: Vec<PagedRows>,
    device: Device,
    // GPU tables for layers without and with a sliding window: all layers of a step are otherwise alike.
    gpu_tables: [OnceLock<(Ints, AttentionStep)>; 2],
    can_fuse_append: bool,
}

impl PagedSequences {
    /// The sequences of a step over pools on `device`. All layers of the step have the same [`AttentionOptions`],
    /// except that some may have a sliding window and others none.
    ///
    /// # Panics
    /// Unless the sequences' rows are consecutive from 0, and each sequence has as many slots as keys: kernels rely on
    /// both.
    pub(crate) fn new(sequences: Vec<PagedRows>, device: &Device) -> Self {
        let mut n_rows = 0;
        for PagedRows { rows, start, first_key, slots } in &sequences {
            let n_slots = slots.host().len();
            assert!(rows.start == n_rows && rows.end >= n_rows, "rows {rows:?} behind {n_rows} rows");
            assert!(*first_key + n_slots == start + rows.len(), "{n_slots} slots for keys from {first_key} on");
            n_rows = rows.end;
        }
        Self { sequences, device: device.clone(), gpu_tables: Default::default(), can_fuse_append: true }
    }

    /// Sequences whose rows see all keys of another text each (cross-attention), or only some keys of their sequence.
    /// Only the CPU has a body for this.
    pub(crate) fn with_other_keys(sequences: Vec<PagedRows>, device: &Device) -> Self {
        Self { sequences, device: device.clone(), gpu_tables: Default::default(), can_fuse_append: false }
    }

    /// The sequences in the order of their rows.
    pub(crate) fn as_slice(&self) -> &[PagedRows] {
        &self.sequences
    }

    /// Rows of all sequences.
    pub(in crate::ops) fn n_rows(&self) -> usize {
        self.sequences.last().map_or(0, |sequence| sequence.rows.end)
    }

    /// Whether each sequence has one row.
    pub(crate) fn decode(&self) -> bool {
        self.sequences.iter().all(|sequence| sequence.rows.len() == 1)
    }

    /// From now on, keys and values are stored by a separate operation, which does not read the pools.
    pub(crate) fn disable_fused_append(&mut self) {
        self.can_fuse_append = false;
    }

    /// Whether one kernel may store keys and values and attend.
    pub(in crate::ops) fn can_fuse_append(&self) -> bool {
        self.can_fuse_append && self.decode()
    }

    /// The kernel's table, and numbers that are equal for steps with the same launches. `None` if no kernel supports
    /// the options.
    pub(crate) fn table(&self, options: &AttentionOptions) -> Option<(&Ints, [usize; 4])> {
        let (table, step) = self.gpu_table(options)?;
        Some((table, [step.n_blocks, step.n_tiles, step.slopes, table.host().len()]))
    }

    /// The kernel's table and parameters. `None` if no kernel supports the options.
    pub(in crate::ops) fn gpu_table(&self, options: &AttentionOptions) -> Option<&(Ints, AttentionStep)> {
        let AttentionOptions { n_heads, n_kv_heads, head_dim, bidirectional, .. } = *options;
        if bidirectional || options.relative.is_some() {
            return None;
        }
        let plan = AttentionPlan {
            n_heads,
            n_kv_heads,
            head_dim,
            // Positions and windows are added in 32 bits there.
            sliding_window: options.sliding_window.map(|window| window.min(1 << 30)),
            has_slopes: options.alibi_slopes.is_some(),
            softcap_bits: options.softcap.map(|cap| (cap as f32).to_bits()),
            block_rows: 1,
        };
        let laid_out = &self.gpu_tables[usize::from(options.sliding_window.is_some())];
        plan.is_possible().then(|| laid_out.get_or_init(|| self.lay_out(plan, options)))
    }

    /// Builds the table: blocks of rows (see [`BLOCK_LEN`]), the pages of each sequence, the slopes. If all sequences
    /// decode, tiles and pages are [rounded up](rounded_up), so that more steps have the same launches.
    fn lay_out(&self, plan: AttentionPlan, options: &AttentionOptions) -> (Ints, AttentionStep) {
        let longest = self.sequences.iter().map(|sequence| sequence.rows.len()).max().unwrap_or(0);
        let plan = if longest > 1 { AttentionPlan { block_rows: plan.most_rows(), ..plan } } else { plan };
        let n_blocks: usize = self.sequences.iter().map(|s| s.rows.len().div_ceil(plan.block_rows)).sum();
        let (mut blocks, mut pages, mut n_tiles) = (Vec::new(), Vec::new(), 1);
        for sequence in &self.sequences {
            let first_page = sequence.first_key / PAGE_SIZE;
            let at = n_blocks * BLOCK_LEN + pages.len();
            for first in sequence.rows.clone().step_by(plan.block_rows) {
                let position = sequence.start + first - sequence.rows.start;
                let n_rows = plan.block_rows.min(sequence.rows.end - first);
                blocks.extend([first, n_rows, position, at, first_page].map(|number| number as i32));
                let first_key = options.seen(position, position + 1).start;
                n_tiles = n_tiles.max((position + n_rows - 1) / TILE - first_key / TILE + 1);
            }
            let slots = sequence.slots.host();
            // The first key may be anywhere in its page; every other page starts at its first slot.
            let firsts = (first_page..).map(|page| (page * PAGE_SIZE).saturating_sub(sequence.first_key));
            pages.extend(firsts.map_while(|at| slots.get(at)).map(|slot| slot / PAGE_SIZE as i32));
        }
        if self.decode() {
            n_tiles = rounded_up(n_tiles);
            // At least a tile's pages: otherwise the number would change with every page of a short text.
            let n_pages = pages.len().max(self.sequences.len() * TILE / PAGE_SIZE);
            pages.resize(rounded_up(n_pages), 0);
        }
        let slopes = blocks.len() + pages.len();
        let slope_bits = options.alibi_slopes.iter().flatten().map(|slope| slope.to_bits().cast_signed());
        let table: Vec<i32> = blocks.into_iter().chain(pages).chain(slope_bits).collect();
        let step = AttentionStep { plan, scale: options.scale as f32, n_blocks, n_tiles, slopes };
        (Ints::new(table, &self.device), step)
    }
}

/// The next 2^k or 3 * 2^k from `n`.
fn rounded_up(n: usize) -> usize {
    let power = n.next_power_of_two();
    if n <= power / 4 * 3 { power / 4 * 3 } else { power }
}
