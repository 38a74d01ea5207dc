//! How long choosing a token takes: `cargo bench --package hearth-model --bench sampling [-- FILE]`. The rows are nearly
//! normal with twenty likely tokens, or those of a file of f32, 49,152 to a row. For each set of parameters, the best and the mean of 300 draws.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::{fs, hint::black_box, time::Instant};

use hearth_model::{
    TokenId,
    decode::sampling::{Purpose, RandomStream, Sampler, SamplingParams, token_logprobs},
};

const N_DRAWS: usize = 300;

fn main() {
    // cargo adds an option of its own.
    let file = std::env::args().skip(1).find(|argument| !argument.starts_with("--"));
    match file {
        Some(file) => {
            let values: Vec<f32> =
                fs::read(file).unwrap().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect();
            measure(&values.chunks_exact(49_152).map(<[f32]>::to_vec).collect::<Vec<_>>());
        }
        None => [49_152, 128_256].into_iter().for_each(|vocab_size| measure(&[row(vocab_size)])),
    }
}

fn row(vocab_size: usize) -> Vec<f32> {
    let random = RandomStream::new(1, 0);
    let bell = |id: usize| (0..12).map(|n| random.uniform(id * 12 + n, Purpose::Token)).sum::<f64>() - 6.0;
    let mut row: Vec<f32> = (0..vocab_size).map(|id| 2.5 * bell(id) as f32).collect();
    (0..20).for_each(|n| row[(n * 2477 + 11) % vocab_size] = 14.0 - 0.4 * n as f32);
    row
}

fn measure(rows: &[Vec<f32>]) {
    let hot = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let cases = [
        ("greedy", SamplingParams::greedy()),
        ("temperature 0.8", hot.clone()),
        ("and top_p 0.95", SamplingParams { top_p: 0.95, ..hot.clone() }),
        ("and top_k 40, top_p 0.95", SamplingParams { top_k: 40, top_p: 0.95, ..hot.clone() }),
        ("and min_p 0.05", SamplingParams { min_p: 0.05, ..hot.clone() }),
        ("and typical_p 0.9", SamplingParams { typical_p: 0.9, ..hot.clone() }),
        ("and repetition_penalty 1.1", SamplingParams { repetition_penalty: 1.1, ..hot.clone() }),
        ("temperature 1.5, top_p 0.95", SamplingParams { temperature: 1.5, top_p: 0.95, ..hot }),
    ];
    let Some(vocab_size) = rows.first().map(Vec::len) else { return };
    println!("{} rows of {vocab_size}: best and mean, in microseconds", rows.len());
    for (name, params) in cases {
        let mut sampler = Sampler::new(params, 0, &(0..200).collect::<Vec<TokenId>>());
        report(name, |at| {
            black_box(sampler.sample(&rows[at % rows.len()], at).unwrap());
        });
    }
    report("logprobs of 5", |at| {
        black_box(token_logprobs(&rows[at % rows.len()], 77, 5));
    });
}

fn report(name: &str, mut draw: impl FnMut(usize)) {
    let times = (0..N_DRAWS).map(|at| {
        let start = Instant::now();
        draw(at);
        start.elapsed().as_secs_f64() * 1e6
    });
    let times: Vec<f64> = times.collect();
    let best = times.iter().copied().fold(f64::INFINITY, f64::min);
    println!("{name:30} {best:8.1} {:8.1}", times.iter().sum::<f64>() / N_DRAWS as f64);
}
