//! The kernels of real steps: each operation of a block, with the operands and the plan that it has there.

use std::{cell::RefCell, rc::Rc};

use burn_cubecl::tensor::CubeTensor;

use super::{
    super::{
        attention,
        epilogue::{Epilogue, LinearOptions},
        gemv,
        rope::{self, HeadLayout},
        rowwise, top_k,
    },
    Case, Gpu, Visit, Weights, training_cases,
};
use crate::{
    config::{Activation, NormKind},
    ops::{
        Dtype, NormOptions, PAGE_SIZE,
        types::{AttentionPlan, AttentionStep, BLOCK_LEN, TILE},
    },
};

/// The sizes of a Llama.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub d_model: usize,
    pub n_heads: usize,
    pub n_kv_heads: usize,
    pub head_dim: usize,
    pub d_ff: usize,
    pub vocab_size: usize,
}

impl Shape {
    /// `docs/shapes/llama-1b`.
    pub const LLAMA_1B: Self = Self {
        name: "llama-1b",
        d_model: 2048,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        d_ff: 8192,
        vocab_size: 128_256,
    };
    /// For tests.
    pub const TINY: Self =
        Self { name: "tiny", d_model: 64, n_heads: 4, n_kv_heads: 2, head_dim: 16, d_ff: 128, vocab_size: 2080 };

    pub(super) fn new(is_tiny: bool) -> Self {
        if is_tiny { Self::TINY } else { Self::LLAMA_1B }
    }

    fn qkv_width(self) -> usize {
        (self.n_heads + 2 * self.n_kv_heads) * self.head_dim
    }

    /// The matrices of a block and the output matrix, `[d_out, d_in]`.
    pub(super) fn matrices(self) -> [(&'static str, [usize; 2]); 5] {
        [
            ("qkv", [self.qkv_width(), self.d_model]),
            ("o", [self.d_model, self.n_heads * self.head_dim]),
            ("gate_up", [2 * self.d_ff, self.d_model]),
            ("down", [self.d_model, self.d_ff]),
            ("lm_head", [self.vocab_size, self.d_model]),
        ]
    }
}

/// Visits each kernel of decoding, prompts and training.
///
/// # Errors
/// Those of `visit`.
pub fn for_each(gpu: &Gpu, is_tiny: bool, mut visit: impl FnMut(&Case) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let shape = Shape::new(is_tiny);
    let (rows, pasts, prompt) = if is_tiny { (vec![1, 3], [20, 150], 130) } else { (vec![1, 4], [100, 1000], 512) };
    for dtype in [Dtype::F16, Dtype::Q8, Dtype::Q4] {
        let layer = Layer::new(gpu, shape, dtype);
        for &n_rows in &rows {
            layer.decode(gpu, n_rows, &mut visit)?;
        }
        layer.prompt(gpu, prompt, &mut visit)?;
    }
    for past in pasts {
        attend(gpu, shape, rows[1], past, &mut visit)?;
    }
    attend_to_prompt(gpu, shape, prompt, &mut visit)?;
    others(gpu, shape, &mut visit)?;
    training_cases::for_each(gpu, is_tiny, &mut visit)
}

/// The name of a dtype in the names of cases.
pub(super) fn dtype_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "f16",
        Dtype::Q8 => "q8",
        Dtype::Q4 => "q4",
        _ => "f32",
    }
}

/// The matrices of a block in one dtype.
pub struct Layer {
    shape: Shape,
    dtype: Dtype,
    matrices: [Rc<Weights>; 5],
}

impl Layer {
    pub fn new(gpu: &Gpu, shape: Shape, dtype: Dtype) -> Self {
        let matrices = shape.matrices().map(|(_, dims)| Rc::new(gpu.weights(dtype, dims)));
        Self { shape, dtype, matrices }
    }

    /// The products of a step of `n_rows` sequences, as decoding fuses them.
    pub fn decode(&self, gpu: &Gpu, n_rows: usize, visit: Visit<'_>) -> anyhow::Result<()> {
        for (which, (name, [d_out, d_in])) in self.shape.matrices().into_iter().enumerate() {
            let weights = self.matrices[which].clone();
            let (is_normed, gate) =
                (matches!(name, "qkv" | "gate_up"), (name == "gate_up").then_some(Activation::Silu));
            let x = gpu.floats(&[n_rows, d_in]);
            let epilogue = Epilogue {
                bias: None,
                residual: matches!(name, "o" | "down").then(|| gpu.floats(&[n_rows, d_out])),
                norm: is_normed.then(|| gpu.floats(&[d_in])),
            };
            let options = LinearOptions { eps: 1e-5, weight_offset: 0.0, gate };
            let work = [weights.n_bytes(), n_rows * d_in * d_out];
            let run = move || gemv::linear(x.clone(), &weights.matrix, epilogue.clone(), options);
            visit(&Case::new(format!("decode {name} {} rows={n_rows}", dtype_name(self.dtype)), work, run))?;
        }
        Ok(())
    }

    /// The products of a prompt.
    pub fn prompt(&self, gpu: &Gpu, n_rows: usize, visit: Visit<'_>) -> anyhow::Result<()> {
        for (which, (name, [d_out, d_in])) in self.shape.matrices().into_iter().enumerate().take(4) {
            let weights = self.matrices[which].clone();
            let x = gpu.floats(&[n_rows, d_in]);
            let residual = matches!(name, "o" | "down").then(|| gpu.floats(&[n_rows, d_out]));
            let epilogue = Epilogue { bias: None, residual, norm: None };
            let options = LinearOptions { eps: 0.0, weight_offset: 0.0, gate: None };
            let work = [weights.n_bytes(), n_rows * d_in * d_out];
            let run = move || gemv::linear(x.clone(), &weights.matrix, epilogue.clone(), options);
            visit(&Case::new(format!("prompt {name} {} rows={n_rows}", dtype_name(self.dtype)), work, run))?;
        }
        Ok(())
    }
}

/// Pools that kernels write to in place. Only one reference to them exists, or the kernels would get copies.
struct Pools(RefCell<Option<[CubeTensor; 2]>>);

impl Pools {
    fn new(gpu: &Gpu, n_slots: usize, width: usize) -> Self {
        Self(RefCell::new(Some([0, 1].map(|_| gpu.pool(&[n_slots, width])))))
    }

    fn change(&self, run: impl FnOnce([CubeTensor; 2]) -> [CubeTensor; 3]) -> CubeTensor {
        let pools = self.0.take().unwrap_or_else(|| unreachable!("a kernel is launched within a launch"));
        let [output, keys, values] = run(pools);
        self.0.replace(Some([keys, values]));
        output
    }
}

fn attention_plan(shape: Shape) -> AttentionPlan {
    let Shape { n_heads, n_kv_heads, head_dim, .. } = shape;
    let (sliding_window, softcap_bits) = (None, None);
    AttentionPlan { n_heads, n_kv_heads, head_dim, sliding_window, has_slopes: false, softcap_bits, block_rows: 1 }
}

/// Attention of `n_rows` sequences after `past` tokens each, with the rotation and storing of their own keys.
pub fn attend(gpu: &Gpu, shape: Shape, n_rows: usize, past: usize, visit: Visit<'_>) -> anyhow::Result<()> {
    let plan = attention_plan(shape);
    let n_pages = past / PAGE_SIZE + 1;
    let mut table = Vec::new();
    for row in 0..n_rows {
        table.extend([row, 1, past, BLOCK_LEN * n_rows + row * n_pages, 0].map(|number| number as i32));
    }
    table.extend(0..(n_rows * n_pages) as i32);
    let step = AttentionStep {
        plan,
        scale: 1.0 / (shape.head_dim as f32).sqrt(),
        n_blocks: n_rows,
        n_tiles: past / TILE + 1,
        slopes: 0,
    };
    let kv_width = shape.n_kv_heads * shape.head_dim;
    let pools = Pools::new(gpu, n_rows * n_pages * PAGE_SIZE, kv_width);
    let (qkv, angles) = (gpu.floats(&[n_rows, shape.qkv_width()]), gpu.floats(&[n_rows, shape.head_dim]));
    let table = gpu.ints(&table);
    let n_keys = n_rows * (past + 1);
    let work = [2 * n_keys * kv_width * 2, 2 * n_keys * shape.n_heads * shape.head_dim];
    visit(&Case::new(format!("attend rows={n_rows} past={past}"), work, move || {
        let operands = [qkv.clone(), angles.clone()];
        pools.change(|pools| attention::append_and_attend(operands, pools, table.clone(), step, shape.head_dim / 2))
    }))
}

/// Rotation, storing and attention of a prompt.
pub fn attend_to_prompt(gpu: &Gpu, shape: Shape, n_rows: usize, visit: Visit<'_>) -> anyhow::Result<()> {
    let plan = attention_plan(shape);
    let plan = AttentionPlan { block_rows: plan.most_rows(), ..plan };
    let (n_pages, n_blocks) = (n_rows.div_ceil(PAGE_SIZE), n_rows.div_ceil(plan.block_rows));
    let mut table = Vec::new();
    for block in 0..n_blocks {
        let first = block * plan.block_rows;
        let rows = plan.block_rows.min(n_rows - first);
        table.extend([first, rows, first, BLOCK_LEN * n_blocks, 0].map(|number| number as i32));
    }
    table.extend(0..n_pages as i32);
    let scale = 1.0 / (shape.head_dim as f32).sqrt();
    let step = AttentionStep { plan, scale, n_blocks, n_tiles: n_rows.div_ceil(TILE), slopes: 0 };
    let Shape { n_heads, n_kv_heads, head_dim, .. } = shape;
    let kv_width = n_kv_heads * head_dim;
    let pools = Pools::new(gpu, n_pages * PAGE_SIZE, kv_width);
    let [keys, values] = [0, 1].map(|_| gpu.pool(&[n_pages * PAGE_SIZE, kv_width]));
    let (qkv, angles) = (gpu.floats(&[n_rows, shape.qkv_width()]), gpu.floats(&[n_rows, head_dim]));
    let slots = gpu.ints(&(0..n_rows as i32).collect::<Vec<_>>());
    let layout = HeadLayout { n_heads, n_kv_heads, head_dim, half: head_dim / 2 };
    visit(&Case::new(format!("prompt rope_append rows={n_rows}"), [n_rows * shape.qkv_width() * 6, 0], move || {
        let operands = [qkv.clone(), angles.clone(), slots.clone()];
        pools.change(|pools| rope::rope_append(operands, pools, layout))
    }))?;
    let (queries, table) = (gpu.floats(&[n_rows, n_heads * head_dim]), gpu.ints(&table));
    let n_pairs = n_rows * (n_rows + 1) / 2;
    let work = [2 * n_rows * kv_width * 2, 2 * n_pairs * n_heads * head_dim];
    visit(&Case::new(format!("prompt attend rows={n_rows}"), work, move || {
        attention::attention([queries.clone(), keys.clone(), values.clone()], table.clone(), step)
    }))
}

/// What is around the blocks, and what a prompt does besides products.
fn others(gpu: &Gpu, shape: Shape, visit: Visit<'_>) -> anyhow::Result<()> {
    let Shape { d_model, d_ff, vocab_size, .. } = shape;
    let norm = NormOptions { kind: NormKind::RmsNorm, eps: 1e-5, weight_offset: 0.0 };
    for n_rows in [1, 16] {
        let (x, weight) = (gpu.floats(&[n_rows, d_model]), gpu.floats(&[d_model]));
        visit(&Case::new(format!("norm rows={n_rows}"), [n_rows * d_model * 8, 0], move || {
            rowwise::norm(x.clone(), weight.clone(), [None, None], norm)
        }))?;
        let logits = gpu.floats(&[n_rows, vocab_size]);
        let table = gpu.ints(&(0..n_rows as i32).collect::<Vec<_>>());
        for n in [1, 50] {
            let (logits, table) = (logits.clone(), table.clone());
            let work = [n_rows * vocab_size * 4, 0];
            visit(&Case::new(format!("top_k n={n} rows={n_rows}"), work, move || {
                top_k::top_k(logits.clone(), table.clone(), [n_rows, n, 0])
            }))?;
        }
    }
    let weights = gpu.weights(Dtype::F16, [vocab_size, d_model]);
    let ids = gpu.ints(&[7; 16]);
    visit(&Case::new("embedding f16 rows=16", [16 * d_model * 6, 0], move || {
        rowwise::embedding(ids.clone(), &weights.matrix)
    }))?;
    let gate_up = gpu.floats(&[128, 2 * d_ff]);
    visit(&Case::new("prompt gated rows=128", [128 * d_ff * 12, 0], move || {
        rowwise::activate(gate_up.clone(), Activation::Silu, true)
    }))
}
