//! Parts of rows of logits: sampling from a part gives the same as sampling from the whole row, and a GPU selects the
//! same parts as the reference.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "tests")]

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use burn::tensor::{Device, TensorData};
use proptest::{prelude::*, test_runner::TestRunner};

use super::*;
use crate::{
    decode::sampling::{ChainStep, Dry, Sampler, SamplingParams, Xtc},
    test_gpu::gpu,
};

/// [`read_logits`] by sorting whole rows: exactly the part of each row that is needed, on any device.
fn read_logits_reference(logits: Tensor<2>, needs: &[LogitDemand]) -> Result<LogitRows> {
    let [_, vocab_size] = logits.dims();
    let values = to_f32(read(logits.cast(DType::F32))?)?;
    let (mut whole, mut best) = (Vec::new(), Vec::new());
    let places = places(needs, vocab_size);
    for ((row, needs), place) in values.chunks_exact(vocab_size).zip(needs).zip(&places) {
        match (needs, place) {
            (LogitDemand::Best { n, also }, RowLocation::Best(_)) => {
                let mut ids: Vec<TokenId> = (0..vocab_size as TokenId).collect();
                // NaN and infinity, which no working model returns, rank first, so that sampling finds them.
                let key = |id: TokenId| match row[id as usize] {
                    logit if logit.is_nan() => f32::INFINITY,
                    // Not -0, since `total_cmp` distinguishes it from 0.
                    logit => logit + 0.0,
                };
                ids.sort_by(|&a, &b| key(b).total_cmp(&key(a)).then(a.cmp(&b)));
                let others = also.iter().copied().filter(|id| !ids[..*n].contains(id) && (*id as usize) < vocab_size);
                let picked = ids[..*n].iter().copied().chain(others);
                best.push(picked.map(|id| (id, row[id as usize])).collect());
            }
            _ => whole.extend_from_slice(row),
        }
    }
    Ok(LogitRows { vocab_size, whole, best, places, n_read_bytes: size_of_val(values.as_slice()) })
}

/// Logits with many ties, zeros of both signs, and excluded tokens (-infinity).
fn logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -9.0..9.0_f32,
        4 => (-3..4i8).prop_map(f32::from),
        1 => Just(-0.0),
        1 => Just(1e-40),
        1 => Just(f32::MAX),
        2 => Just(f32::NEG_INFINITY),
    ]
}

/// Rows of logits, some with NaN or infinity, which no working model returns.
fn row(len: impl Strategy<Value = usize>) -> impl Strategy<Value = Vec<f32>> {
    let broken = prop_oneof![Just(f32::NAN), Just(-f32::NAN), Just(f32::INFINITY)];
    let breaks =
        prop_oneof![3 => Just(Vec::new()).boxed(), 1 => prop::collection::vec((any::<usize>(), broken), 1..4).boxed()];
    (len.prop_flat_map(|len| prop::collection::vec(logit(), len)), breaks).prop_map(|(mut row, breaks)| {
        let len = row.len();
        breaks.into_iter().for_each(|(at, value)| row[at % len] = value);
        row
    })
}

fn tensor(rows: &[Vec<f32>], device: &Device) -> Tensor<2> {
    Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), rows[0].len()]), device)
}

/// Each row's tokens and logits, as bits: NaN is equal to itself then.
fn bits(rows: &LogitRows) -> Vec<(bool, Vec<(TokenId, u32)>)> {
    let of_row = |row: LogitRow<'_>| match row {
        LogitRow::Whole(logits) => (true, (0..).zip(logits.iter().map(|logit| logit.to_bits())).collect()),
        LogitRow::Best(logits) => (false, logits.iter().map(|&(id, logit)| (id, logit.to_bits())).collect()),
    };
    rows.iter().map(of_row).collect()
}

fn needs() -> impl Strategy<Value = LogitDemand> {
    let n = prop_oneof![Just(1), 2..60_usize, Just(LogitDemand::MAX_BEST)];
    let also = prop::collection::btree_set(0..4000 as TokenId, 0..20);
    prop_oneof![1 => Just(LogitDemand::Whole), 4 => (n, also).prop_map(|(n, also)| LogitDemand::Best { n, also })]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Vocabularies that take one pass and several; requests for all tokens of the vocabulary, and for more.
    #[test]
    fn read_logits_on_gpu_returns_the_same_top_tokens_in_order(
        (rows, needs) in prop_oneof![1..300_usize, 1000..1100_usize, 2000..9000_usize, Just(49_152)]
            .prop_flat_map(|len| prop::collection::vec((row(Just(len)), needs()), 1..5))
            .prop_map(|rows| rows.into_iter().unzip::<_, _, Vec<_>, Vec<_>>()),
    ) {
        let Some(gpu) = gpu() else { return Ok(()) };
        let expected = read_logits_reference(tensor(&rows, &Device::flex()), &needs).unwrap();
        let found = read_logits(tensor(&rows, &gpu), &needs).unwrap();
        prop_assert_eq!(bits(&found), bits(&expected));
    }
}

/// The kernel reads 32 bits to a logit.
#[test]
fn read_logits_on_gpu_accepts_f16_logits() {
    let Some(gpu) = gpu() else { return };
    let rows = [(0..300).map(|id| (id * 7 % 300) as f32 - 100.0).collect::<Vec<f32>>()];
    let needs = [LogitDemand::Best { n: 5, also: [299].into() }];
    let found = read_logits(tensor(&rows, &gpu).cast(DType::F16), &needs).unwrap();
    assert_eq!(bits(&found), bits(&read_logits_reference(tensor(&rows, &Device::flex()), &needs).unwrap()));
}

#[test]
fn read_logits_reference_sorts_by_logit_then_id() {
    let logits = [0.0, f32::NEG_INFINITY, 2.0, -0.0, f32::NAN, 2.0, -1.0, f32::INFINITY];
    let of = |n, also: &[TokenId]| {
        let needs = LogitDemand::Best { n, also: also.iter().copied().collect() };
        let rows = read_logits_reference(tensor(&[logits.to_vec()], &Device::flex()), &[needs]).unwrap();
        rows.iter()
            .flat_map(|row| match row {
                LogitRow::Whole(_) => vec![TokenId::MAX],
                LogitRow::Best(pairs) => pairs.iter().map(|pair| pair.0).collect(),
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(of(7, &[]), [4, 7, 2, 5, 0, 3, 6]);
    assert_eq!(of(2, &[7, 1, 6, 900]), [4, 7, 1, 6]);
    assert_eq!(of(8, &[]), [TokenId::MAX], "all of them are the whole row");
}

/// Parameters of random requests.
fn params() -> impl Strategy<Value = SamplingParams> {
    fn or<T: Clone + std::fmt::Debug + 'static>(
        neutral: T,
        other: impl Strategy<Value = T> + 'static,
    ) -> impl Strategy<Value = T> {
        prop_oneof![2 => Just(neutral), 1 => other]
    }
    let order = prop_oneof![
        3 => Just(ChainStep::DEFAULT_ORDER.to_vec()).boxed(),
        1 => Just(ChainStep::DEFAULT_ORDER.to_vec()).prop_shuffle().boxed(),
    ];
    let shape = (
        prop_oneof![Just(0.0), Just(1.0), 0.01..3.0_f32],
        prop_oneof![9 => Just(0.0), 1 => 0.1..0.5_f32],
        prop_oneof![1 => Just(0), 4 => 1..70_usize, 1 => 250..260_usize],
        or(1.0, 0.1..1.0_f32),
        or(0.0, 0.001..0.5_f32),
        or(1.0, 0.1..1.0_f32),
        or(0.0, 0.5..3.0_f32),
        or(Xtc::default(), Just(Xtc { probability: 0.5, threshold: 0.05 })),
        order,
    );
    let bias = prop::collection::btree_map(0..300 as TokenId, -20.0..20.0_f32, 0..30);
    let allowed = prop::collection::btree_set(0..300 as TokenId, 1..20);
    let bad_words = prop::collection::vec(prop::collection::vec(0..300 as TokenId, 1..3), 1..5);
    let changes = (
        (
            or(1.0, 0.5..2.0_f32),
            prop::option::of(1..20_usize),
            or(0.0, -2.0..2.0_f32),
            or(0.0, -2.0..2.0_f32),
            or(BTreeMap::new(), bias),
            prop_oneof![9 => Just(None), 1 => allowed.prop_map(Some)],
        ),
        (
            or(Vec::new(), bad_words),
            prop_oneof![9 => Just(Dry::default()), 1 => Just(Dry { multiplier: 0.8, ..Dry::default() })],
            any::<u64>(),
        ),
    );
    let valid = |params: &SamplingParams| params.validate(300).is_ok();
    let params = (shape, changes).prop_map(|(shape, changes)| {
        let (temperature, dynatemp_range, top_k, top_p, min_p, typical_p, top_n_sigma, xtc, samplers) = shape;
        let (repetition_penalty, repeat_last_n, presence_penalty, frequency_penalty, logit_bias, allowed_token_ids) =
            changes.0;
        let (bad_words, dry, seed) = changes.1;
        SamplingParams {
            temperature,
            dynatemp_range,
            top_k,
            top_p,
            min_p,
            typical_p,
            top_n_sigma,
            xtc,
            samplers,
            repetition_penalty,
            repeat_last_n,
            presence_penalty,
            frequency_penalty,
            logit_bias: Arc::new(logit_bias),
            allowed_token_ids: allowed_token_ids.map(Arc::new),
            bad_words: bad_words.into(),
            dry,
            seed,
            ..SamplingParams::default()
        }
    });
    params.prop_filter("combinations that are refused", valid)
}

/// Sampling, log-probabilities and the distribution are the same from the part that the sampler asks for as from the
/// whole row.
#[test]
fn sampling_from_partial_logits_equals_sampling_from_the_whole_row() {
    let ids = |len| prop::collection::vec(0..300 as TokenId, len);
    let barred = prop::collection::btree_set(0..310 as TokenId, 0..4);
    let text = (ids(0..40), ids(0..20), ids(0..4), 0..4usize, barred);
    let counts = [Cell::new(0), Cell::new(0), Cell::new(0)];
    let count = |at: usize| counts[at].set(counts[at].get() + 1);
    let mut runner = TestRunner::new(ProptestConfig::with_cases(6000));
    let cases = (row(prop_oneof![4 => Just(300), 1 => 1..300_usize]), params(), text, any::<bool>());
    runner
        .run(&cases, |(row, params, (prompt, output, ahead, n_ahead, barred), is_barred)| {
            let mut sampler = Sampler::new(params, 1, &prompt);
            output.iter().for_each(|&id| sampler.accept(id));
            let needs = sampler.needs(&barred, &ahead);
            // Some of the tokens that may have joined the output between the call of `needs` and sampling.
            ahead.iter().take(n_ahead).for_each(|&id| sampler.accept(id));
            let part = read_logits_reference(tensor(std::slice::from_ref(&row), &Device::flex()), &[needs]).unwrap();
            let (whole, part) = (LogitRow::from(&row), part.iter().next().unwrap());
            let allowed =
                |row: &LogitRow<'_>| if is_barred { row.without(&barred) } else { row.without(&BTreeSet::new()) };
            let (whole, part) = (allowed(&whole), allowed(&part));
            let position = prompt.len() + output.len();
            let draw = |row: &LogitRow<'_>| sampler.clone().sample(row, position).map_err(|error| error.to_string());
            let drawn = draw(&whole);
            prop_assert_eq!(&draw(&part), &drawn);
            if matches!(part, LogitRow::Best(_)) {
                count(usize::from(drawn.is_err()));
            } else {
                count(2);
            }
            let Ok(id) = drawn else { return Ok(()) };
            let logprobs = |row: &LogitRow<'_>| sampler.logprobs(row, position, (id, 5)).unwrap();
            prop_assert_eq!(logprobs(&part), logprobs(&whole));
            prop_assert_eq!(sampler.distribution(&part).unwrap(), sampler.distribution(&whole).unwrap());
            Ok(())
        })
        .unwrap();
    let [drawn, refused, whole] = counts.map(|count| count.get());
    println!("drawn from parts {drawn} times, refused {refused} times, the whole row wanted {whole} times");
    assert!(drawn > 1000 && refused > 100 && whole > 1000, "the test shows too little");
}

#[test]
fn sampler_requests_partial_logits_only_if_few_tokens_are_possible() {
    let greedy = SamplingParams::greedy();
    let top_k = SamplingParams { top_k: 40, temperature: 0.8, ..SamplingParams::default() };
    let needs = |params: &SamplingParams| {
        let mut sampler = Sampler::new(params.clone(), 0, &[1, 2]);
        [3, 4].into_iter().for_each(|id| sampler.accept(id));
        sampler.needs(&BTreeSet::new(), &[5])
    };
    let best =
        |n: usize, also: &[TokenId]| LogitDemand::Best { n: n + also.len(), also: also.iter().copied().collect() };
    assert_eq!(needs(&greedy), best(1, &[]));
    assert_eq!(needs(&top_k), best(40, &[]));
    assert_eq!(needs(&SamplingParams { top_p: 0.9, min_p: 0.1, ..top_k.clone() }), best(40, &[]), "they come behind");
    assert_eq!(needs(&SamplingParams { logit_bias: Arc::new([(9, 1.0)].into()), ..top_k.clone() }), best(40, &[9]));
    assert_eq!(needs(&SamplingParams { bad_words: [vec![7, 8]].into(), ..greedy.clone() }), best(1, &[8]));
    assert_eq!(needs(&SamplingParams { frequency_penalty: 0.5, ..greedy.clone() }), best(1, &[3, 4, 5]));
    assert_eq!(needs(&SamplingParams { repetition_penalty: 1.1, ..greedy.clone() }), best(1, &[1, 2, 3, 4, 5]));
    let barred = Sampler::new(greedy, 0, &[]).needs(&[6, 7].into(), &[]);
    assert_eq!(barred, best(1, &[6, 7]));
    let whole = [
        SamplingParams::default(),
        SamplingParams { top_p: 0.9, ..SamplingParams::default() },
        SamplingParams { top_k: 257, ..top_k.clone() },
        SamplingParams { logit_bias: Arc::new((0..217).map(|id| (id, 1.0)).collect()), ..top_k.clone() },
        SamplingParams { dynatemp_range: 0.1, ..top_k.clone() },
        SamplingParams { top_n_sigma: 1.0, ..top_k.clone() },
        SamplingParams { allowed_token_ids: Some(Arc::new([1].into())), ..top_k.clone() },
        SamplingParams {
            samplers: vec![ChainStep::TopP, ChainStep::Temperature, ChainStep::TopK],
            top_p: 0.5,
            ..top_k
        },
    ];
    for params in whole {
        assert_eq!(needs(&params), LogitDemand::Whole, "{params:?}");
    }
}
