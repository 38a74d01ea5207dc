//! Kernels with other plans than the one that Hearth chooses.

use std::rc::Rc;

use burn_cubecl::{cubecl::prelude::*, tensor::CubeTensor};

use super::{
    super::{
        epilogue::{Epilogue, LinearOptions},
        gemm_tensor_core, gemm_tiled, gemv,
        launch::empty,
        product::{Causal, Operand, Plan, Product},
    },
    Case, Gpu, Visit, Weights,
    cases::{Shape, dtype_name},
};
use crate::ops::{Dtype, Precision};

const PLAIN: LinearOptions = LinearOptions { eps: 0.0, weight_offset: 0.0, gate: None };

/// A product by gemv with `plan`.
fn by_gemv(gpu: &Gpu, name: String, weights: &Rc<Weights>, n_rows: usize, plan: gemv::Plan) -> Case {
    let [d_out, d_in] = [weights.matrix.d_out, weights.matrix.d_in];
    let (x, of_run) = (gpu.floats(&[n_rows, d_in]), weights.clone());
    let run = move || {
        let output = empty(&x, [n_rows, d_out]);
        gemv::launch(plan, x.clone(), &of_run.matrix, Epilogue::default(), PLAIN, &output);
        output
    };
    let (values, weights) = (gpu.period(), weights.clone());
    Case::new(name, [weights.n_bytes(), n_rows * d_in * d_out], run)
        .with_error(move |found| weights.error(&values, found, n_rows))
}

/// One row: lanes for an output, outputs for a lane, and units that a lane loads at once, each around the plan that Hearth
/// chooses, which comes first.
///
/// # Errors
/// Those of `visit`.
pub fn gemv(gpu: &Gpu, is_tiny: bool, visit: Visit<'_>) -> anyhow::Result<()> {
    let shape = Shape::new(is_tiny);
    for dtype in [Dtype::F16, Dtype::Q8, Dtype::Q4] {
        for (name, dims) in shape.matrices() {
            let weights = Rc::new(gpu.weights(dtype, dims));
            let base = gemv::Plan::new(1, &weights.matrix, &Epilogue::default(), None);
            let mut plans = vec![base];
            let with = |change: &dyn Fn(&mut gemv::Plan)| {
                let mut plan = base;
                change(&mut plan);
                plan
            };
            plans.extend([32, 64, 128].map(|lanes| with(&|plan| plan.lanes = lanes)));
            plans.extend([1, 2, 4, 8].map(|outputs| with(&|plan| plan.outputs = outputs)));
            plans.extend([1, 2, 4, 8].map(|depth| with(&|plan| plan.depth = depth)));
            let mut tried = Vec::new();
            for plan in plans.into_iter().take(if is_tiny { 3 } else { usize::MAX }) {
                if !tried.contains(&plan) {
                    tried.push(plan);
                    let gemv::Plan { lanes, outputs, depth, .. } = plan;
                    let name = format!("{name} {} lanes={lanes} outputs={outputs} depth={depth}", dtype_name(dtype));
                    visit(&by_gemv(gpu, name, &weights, 1, plan))?;
                }
            }
            if is_tiny {
                break;
            }
        }
    }
    Ok(())
}

/// Few rows: by gemv with one to eight rows at a time, by tiles, and by matrix instructions where there are any.
///
/// # Errors
/// Those of `visit`.
pub fn few_rows(gpu: &Gpu, is_tiny: bool, visit: Visit<'_>) -> anyhow::Result<()> {
    let shape = Shape::new(is_tiny);
    let counts: &[usize] = if is_tiny { &[5] } else { &[8, 16, 32, 64, 127] };
    for dtype in [Dtype::F16, Dtype::Q8] {
        for (name, dims @ [d_out, d_in]) in shape.matrices().into_iter().take(if is_tiny { 1 } else { 4 }) {
            let weights = Rc::new(gpu.weights(dtype, dims));
            for &n_rows in counts {
                let label = |how: String| format!("{name} {} rows={n_rows} {how}", dtype_name(dtype));
                let base = gemv::Plan::new(n_rows, &weights.matrix, &Epilogue::default(), None);
                for rows in if is_tiny { vec![4] } else { vec![1, 2, 4, 8] } {
                    let mut plan = base;
                    plan.rows = rows;
                    visit(&by_gemv(gpu, label(format!("gemv together={rows}")), &weights, n_rows, plan))?;
                }
                let (x, values) = (gpu.floats(&[n_rows, d_in]), gpu.period());
                let work = [weights.n_bytes(), n_rows * d_in * d_out];
                let (of_run, of_x) = (weights.clone(), x.clone());
                let tiled = move || {
                    let output = empty(&of_x, [n_rows, d_out]);
                    gemm_tiled::launch(of_x.clone(), &of_run.matrix, Epilogue::default(), &output);
                    output
                };
                let (of_error, of_values) = (weights.clone(), values.clone());
                let error = move |found: &[f32]| of_error.error(&of_values, found, n_rows);
                visit(&Case::new(label("tiled".to_owned()), work, tiled).with_error(error))?;
                if gemm_tensor_core::has_body(&weights.matrix) {
                    let (of_run, of_error) = (weights.clone(), weights.clone());
                    let run = move || gemm_tensor_core::launch(&x, &of_run.matrix, &Epilogue::default());
                    let error = move |found: &[f32]| of_error.error(&values, found, n_rows);
                    visit(&Case::new(label("matrix instructions".to_owned()), work, run).with_error(error))?;
                }
            }
        }
    }
    Ok(())
}

/// Products of training and of prompts by matrix instructions, with other tiles; the first plan is Hearth's.
///
/// # Errors
/// Those of `visit`.
pub fn products(gpu: &Gpu, is_tiny: bool, visit: Visit<'_>) -> anyhow::Result<()> {
    let sizes: &[[usize; 3]] = match is_tiny {
        true => &[[64, 64, 64]],
        false => &[[8192, 3072, 768], [8192, 768, 3072], [512, 16_384, 2048], [512, 2048, 8192]],
    };
    let hardware = gpu.client.properties().hardware.clone();
    // Plan by plan: if the time is over, each size has had the first plans.
    let mut cases: Vec<(usize, Case)> = Vec::new();
    for &[m, n, k] in sizes {
        let (a, weights) = (gpu.floats(&[m, k]), Rc::new(gpu.weights(Dtype::F32, [n, k])));
        for (precision_name, precision) in [("bf16", Precision::Bf16), ("f32", Precision::F32)] {
            let b = weights.matrix.words.clone();
            let Some(base) = product(&a, &b, [m, n, k], precision).plan() else { return Ok(()) };
            let plans = plans(base, is_tiny).into_iter().filter(|plan| plan.fits(&hardware));
            for (place, plan) in plans.enumerate() {
                let (a, b) = (a.clone(), b.clone());
                let run = move || {
                    let output = empty(&a, [m, n]);
                    product(&a, &b, [m, n, k], precision).write_by(plan, &output, n, false);
                    output
                };
                let Plan { m: rows, n: columns, k: terms, .. } = plan;
                let planes = [plan.rows, plan.columns].map(|n| n * plan.fragment);
                let name = format!("{m}x{n}x{k} {precision_name} tile={rows}x{columns}x{terms} plane={planes:?}");
                let (values, weights) = (gpu.period(), weights.clone());
                let work = [4 * (m * k + n * k + m * n), m * n * k];
                let case = Case::new(name, work, run).with_error(move |found| weights.error(&values, found, m));
                cases.push((place, case));
            }
        }
    }
    cases.sort_by_key(|(place, _)| *place);
    cases.iter().try_for_each(|(_, case)| visit(case))
}

/// `a [m, k]` times the transposed `b [n, k]`.
fn product<'a>(a: &'a CubeTensor, b: &'a CubeTensor, dims: [usize; 3], precision: Precision) -> Product<'a> {
    let k = dims[2];
    let (a, b) = (Operand::new(a, k), Operand::new(b, k).transposed());
    Product { a, b, dims, batch: 1, causal: (Causal::No, 0), bias: None, precision }
}

/// `base`, and tiles of other sizes.
fn plans(base: Plan, is_tiny: bool) -> Vec<Plan> {
    let mut plans = vec![base];
    if is_tiny {
        return plans;
    }
    for [m, n] in [[4, 8], [8, 4], [8, 8], [8, 16], [16, 8], [4, 4]] {
        for k in [2, 4] {
            for [rows, columns] in [[4, 2], [4, 4], [2, 4], [2, 2]] {
                let [m, n, k] = [m, n, k].map(|fragments| fragments * base.fragment);
                let mut plan = base;
                (plan.m, plan.n, plan.k, plan.rows, plan.columns) = (m, n, k, rows, columns);
                if !plans.contains(&plan) {
                    plans.push(plan);
                }
            }
        }
    }
    plans
}
