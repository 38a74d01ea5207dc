#![expect(clippy::unwrap_used, reason = "tests")]

use super::{super::SamplingParams, *};

const VOCAB: usize = 5;
const END: TokenId = 0;

/// A model: logits as a function of the tokens before.
fn logits(prefix: &[TokenId]) -> Vec<f32> {
    let path = prefix.iter().fold(3, |path, &id| RandomStream::new(path, 1).bits(id as usize, Purpose::Token));
    let number = |id| RandomStream::new(path, 2).uniform(id, Purpose::Token) as f32;
    (0..VOCAB).map(|id| 3.0 * number(id)).collect()
}

fn logprobs(prefix: &[TokenId]) -> Vec<f64> {
    let logits = logits(prefix);
    let total = log_sum_exp(&logits);
    logits.iter().map(|&logit| f64::from(logit) - total).collect()
}

/// Every answer there is, with its log-probability.
fn answers(prefix: &[TokenId], logprob: f64, max_tokens: usize) -> Vec<(Vec<TokenId>, f64)> {
    if prefix.last() == Some(&END) || prefix.len() == max_tokens {
        return vec![(prefix.to_vec(), logprob)];
    }
    let next = logprobs(prefix);
    let continued = (0..VOCAB).flat_map(|id| {
        let longer = [prefix, &[id as TokenId]].concat();
        answers(&longer, logprob + next[id], max_tokens)
    });
    continued.collect()
}

fn best(length_penalty: f32, early_stopping: EarlyStopping) -> BeamKind {
    BeamKind::Best { length_penalty, early_stopping, groups: BeamGroups::ONE }
}

fn params(width: usize, max_tokens: usize, kind: BeamKind) -> BeamParams {
    BeamParams {
        width,
        kind,
        temperature: 0.0,
        end_ids: Arc::new([END].into()),
        min_tokens: 0,
        max_tokens,
        n_top: None,
        rules: None,
    }
}

fn search(params: BeamParams) -> Vec<Hypothesis> {
    search_with_stop(params, &[])
}

/// `stop` is a run of tokens that ends an answer.
fn search_with_stop(params: BeamParams, stop: &[TokenId]) -> Vec<Hypothesis> {
    search_in(logits, params, stop)
}

/// `logits` is the model.
fn search_in(logits: fn(&[TokenId]) -> Vec<f32>, params: BeamParams, stop: &[TokenId]) -> Vec<Hypothesis> {
    let n = params.width;
    let mut search = BeamSearch::new(params);
    loop {
        let before = search.beams().to_vec();
        // In any order.
        for beam in (0..before.len()).rev() {
            let ids = &before[beam].token_ids;
            let completes = |id| !stop.is_empty() && [ids.as_slice(), &[id]].concat().ends_with(stop);
            search.expand(beam, &logits(ids), completes).unwrap();
        }
        let parents = search.select();
        if parents.is_empty() {
            return search.into_best(n);
        }
        for (&parent, beam) in parents.iter().zip(search.beams()) {
            let (_, start) = beam.token_ids.split_last().unwrap();
            assert_eq!(start, before[parent].token_ids);
        }
    }
}

#[test]
fn beam_search_wider_than_all_answers_ranks_them_exhaustively() {
    for length_penalty in [0.0, 0.6, 1.0, 2.0, -1.0] {
        let mut all = answers(&[], 0.0, 4);
        let score = |(ids, logprob): &(Vec<TokenId>, f64)| logprob / (ids.len() as f64).powf(f64::from(length_penalty));
        all.sort_by(|a, b| score(b).total_cmp(&score(a)));
        // The search leaves off only once it has `width` finished answers, and there are 341.
        let found = search(params(400, 4, best(length_penalty, EarlyStopping::Likely)));
        assert_eq!(found.len(), all.len());
        for (found, expected) in found.iter().zip(&all) {
            assert_eq!(found.token_ids, expected.0);
            assert!((found.logprob - expected.1).abs() < 1e-9);
            assert_eq!(found.is_ended, found.token_ids.last() == Some(&END));
        }
    }
}

/// A naive reference: sorts all continuations of all beams.
fn naive(width: usize, max_tokens: usize, stop: &[TokenId]) -> Vec<Vec<TokenId>> {
    let (mut beams, mut finished) = (vec![(Vec::new(), 0.0)], Vec::new());
    for n_tokens in 1..=max_tokens {
        let mut all: Vec<(Vec<TokenId>, f64)> = Vec::new();
        for (prefix, logprob) in &beams {
            let next = logprobs(prefix);
            all.extend((0..VOCAB).map(|id| ([prefix.as_slice(), &[id as TokenId]].concat(), logprob + next[id])));
        }
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        let is_stopped = |ids: &[TokenId]| !stop.is_empty() && ids.ends_with(stop);
        let ends = |ids: &[TokenId]| ids.last() == Some(&END) || is_stopped(ids) || n_tokens == max_tokens;
        finished.extend(all.iter().take(width).filter(|(ids, _)| ends(ids)).cloned());
        beams = all.into_iter().filter(|(ids, _)| !ends(ids)).take(width).collect();
    }
    finished.sort_by(|a, b| (b.1 / b.0.len() as f64).total_cmp(&(a.1 / a.0.len() as f64)));
    finished.into_iter().map(|(ids, _)| ids).take(width).collect()
}

#[test]
fn beam_search_matches_a_naive_search_for_widths_1_to_11() {
    for width in 1..12 {
        for max_tokens in 1..7 {
            for stop in [&[][..], &[2], &[3, 1]] {
                let found = search_with_stop(params(width, max_tokens, best(1.0, EarlyStopping::Certain)), stop);
                let expected = naive(width, max_tokens, stop);
                let ids: Vec<_> = found.into_iter().map(|hypothesis| hypothesis.token_ids).collect();
                assert_eq!(ids, expected, "{width} beams, {max_tokens} tokens, stop {stop:?}");
            }
        }
    }
}

#[test]
fn beam_search_of_width_one_is_greedy() {
    let mut greedy = Vec::new();
    while greedy.len() < 6 && greedy.last() != Some(&END) {
        let next = logprobs(&greedy);
        let id = (0..VOCAB).max_by(|&a, &b| next[a].total_cmp(&next[b])).unwrap();
        greedy.push(id as TokenId);
    }
    for temperature in [0.0, 1e-45] {
        let found = search(BeamParams { temperature, ..params(1, 6, best(0.0, EarlyStopping::Full)) });
        assert_eq!(found[0].token_ids, greedy, "{temperature}");
    }
}

#[test]
fn beams_at_tiny_temperatures_rank_all_tokens_by_their_logits() {
    let found = |temperature| {
        let found = search(BeamParams { temperature, ..params(4, 1, best(0.0, EarlyStopping::Full)) });
        found.into_iter().map(|hypothesis| hypothesis.token_ids).collect::<Vec<_>>()
    };
    let next = logprobs(&[]);
    let mut ids: Vec<TokenId> = (0..VOCAB as TokenId).collect();
    ids.sort_by(|&a, &b| next[b as usize].total_cmp(&next[a as usize]));
    let expected: Vec<Vec<TokenId>> = ids.into_iter().take(4).map(|id| vec![id]).collect();
    for temperature in [1.0, 1e-20, 1e-39, 1e-45] {
        assert_eq!(found(temperature), expected, "{temperature}");
    }
}

#[test]
fn early_stopping_decides_when_beam_search_ends() {
    /// 1 begins the likely answers. They may end after two more tokens; if they do not, they never end.
    fn logits(prefix: &[TokenId]) -> Vec<f32> {
        let probabilities: [f32; 3] = match prefix {
            [] => [0.3, 0.65, 0.05],
            [1] => [0.1, 0.89, 0.01],
            [1, 1] => [0.96, 0.03, 0.01],
            [1, ..] => [0.01, 0.98, 0.01],
            _ => [0.4, 0.35, 0.25],
        };
        probabilities.map(f32::ln).to_vec()
    }
    let found = |early_stopping| search_in(logits, params(2, 8, best(1.0, early_stopping)), &[]);
    let ids = |early_stopping| -> Vec<_> { found(early_stopping).into_iter().map(|answer| answer.token_ids).collect() };
    // Two answers are finished, though the best partial one has a better score.
    assert_eq!(ids(EarlyStopping::Full), [vec![END], vec![1, END]]);
    // One step later the best partial answer, 1 1 1, has a worse score than both.
    assert_eq!(ids(EarlyStopping::Likely), [vec![1, 1, END], vec![END]]);
    // As long as it may become, it can still have a better score than the second.
    assert_eq!(ids(EarlyStopping::Certain), [vec![1, 1, END], vec![1; 8]]);
    let score = |early_stopping| search(params(3, 8, best(1.0, early_stopping)))[0].score;
    let [full, likely, certain] = [EarlyStopping::Full, EarlyStopping::Likely, EarlyStopping::Certain].map(score);
    assert!(full <= likely && likely <= certain, "{full} {likely} {certain}");
}

#[test]
fn beam_search_respects_min_tokens_and_reports_raw_logprobs() {
    let found = search(BeamParams {
        min_tokens: 3,
        n_top: Some(2),
        temperature: 0.5,
        ..params(4, 5, best(1.0, EarlyStopping::Likely))
    });
    assert!(!found.is_empty());
    for hypothesis in found {
        assert!(hypothesis.token_ids.len() >= 3, "{hypothesis:?}");
        assert!(hypothesis.token_ids.iter().take(3).all(|&id| id != END));
        assert_eq!(hypothesis.logprobs.len(), hypothesis.token_ids.len());
        for (at, reported) in hypothesis.logprobs.iter().enumerate() {
            let raw = logits(&hypothesis.token_ids[..at]);
            assert_eq!(*reported, token_logprobs(&raw, hypothesis.token_ids[at], 2));
        }
    }
}

/// Drawing one answer after the other and throwing repetitions away: the probability that each is among `k`.
fn inclusion(probabilities: &[f64], k: usize) -> Vec<f64> {
    fn draw(probabilities: &[f64], drawn: &mut Vec<usize>, chance: f64, k: usize, included: &mut [f64]) {
        if drawn.len() == k {
            drawn.iter().for_each(|&index| included[index] += chance);
            return;
        }
        let left = 1.0 - drawn.iter().map(|&index| probabilities[index]).sum::<f64>();
        for index in 0..probabilities.len() {
            if !drawn.contains(&index) {
                drawn.push(index);
                draw(probabilities, drawn, chance * probabilities[index] / left, k, included);
                drawn.pop();
            }
        }
    }
    let mut included = vec![0.0; probabilities.len()];
    draw(probabilities, &mut Vec::new(), 1.0, k, &mut included);
    included
}

#[test]
fn stochastic_beam_search_samples_without_replacement() {
    const N_TRIALS: u64 = 20_000;
    let all = answers(&[], 0.0, 2);
    let probabilities: Vec<f64> = all.iter().map(|(_, logprob)| logprob.exp()).collect();
    assert!((probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    for k in [1, 3] {
        let expected = inclusion(&probabilities, k);
        let (mut n_included, mut n_first) = (vec![0usize; all.len()], vec![0usize; all.len()]);
        for seed in 0..N_TRIALS {
            let found = search(params(k, 2, BeamKind::Stochastic { seed }));
            let places: Vec<usize> = found
                .iter()
                .map(|hypothesis| all.iter().position(|(ids, _)| *ids == hypothesis.token_ids).unwrap())
                .collect();
            assert_eq!(places.iter().collect::<BTreeSet<_>>().len(), k, "no answer comes twice");
            places.iter().for_each(|&place| n_included[place] += 1);
            n_first[places[0]] += 1;
        }
        for (counts, expected) in [(&n_included, &expected), (&n_first, &probabilities)] {
            for (&count, &chance) in counts.iter().zip(expected) {
                let frequency = count as f64 / N_TRIALS as f64;
                let deviation = (chance * (1.0 - chance) / N_TRIALS as f64).sqrt();
                assert!((frequency - chance).abs() < 4.5 * deviation, "{frequency} instead of {chance}, {k} drawn");
            }
        }
    }
    let draw = |seed| search(params(3, 4, BeamKind::Stochastic { seed }));
    assert_eq!(draw(1), draw(1));
    assert_ne!(draw(1), draw(2));
}

/// A case of `tests/beams`: a table of logits by the last token, and the answers that `transformers` finds.
fn assert_finds(case: &serde_json::Value, params: BeamParams) {
    let table: Vec<Vec<f32>> = serde_json::from_value(case["table"].clone()).unwrap();
    let (width, kind) = (params.width, params.kind);
    let mut search = BeamSearch::new(params);
    loop {
        let beams: Vec<Option<TokenId>> = search.beams().iter().map(|beam| beam.token_ids.last().copied()).collect();
        for (beam, last) in beams.into_iter().enumerate() {
            search.expand(beam, &table[last.unwrap_or(1) as usize], |_| false).unwrap();
        }
        if search.select().is_empty() {
            break;
        }
    }
    let found = search.into_best(width);
    let expected = case["answers"].as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{kind:?}");
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(serde_json::json!(found.token_ids), expected["ids"], "{kind:?}");
        let score = expected["score"].as_f64().unwrap();
        assert!((found.score - score).abs() < 1e-5, "{}, expected {score}", found.score);
    }
}

/// The parameters of such a case.
fn params_of(case: &serde_json::Value, groups: BeamGroups) -> BeamParams {
    let size = |name: &str| case[name].as_u64().unwrap() as usize;
    let early_stopping = match &case["early_stopping"] {
        stop if stop == "never" => EarlyStopping::Certain,
        stop if stop == true => EarlyStopping::Full,
        _ => EarlyStopping::Likely,
    };
    let length_penalty = case["length_penalty"].as_f64().unwrap() as f32;
    params(size("width"), size("max_tokens"), BeamKind::Best { length_penalty, early_stopping, groups })
}

/// `tests/beams/make_group_beams.py` made the cases.
#[test]
fn beam_search_in_groups_finds_what_transformers_finds() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../../../../tests/beams/group_beams.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let n_groups = case["n_groups"].as_u64().unwrap() as usize;
        let groups = BeamGroups { n_groups, penalty: case["penalty"].as_f64().unwrap() };
        assert_finds(case, params_of(case, groups));
    }
}

/// `tests/beams/make_ruled_beams.py` made the cases.
#[test]
fn beam_search_under_penalties_and_bans_finds_what_transformers_finds() {
    let cases: serde_json::Value =
        serde_json::from_str(include_str!("../../../../tests/beams/ruled_beams.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let rules = &case["rules"];
        let ids = |name: &str| rules[name].as_array().cloned().unwrap_or_default();
        let words = ids("bad_words_ids").into_iter().map(|word| serde_json::from_value(word).unwrap());
        let single = ids("suppress_tokens").into_iter().map(|id| vec![id.as_u64().unwrap() as TokenId]);
        let sampling = SamplingParams {
            repetition_penalty: rules["repetition_penalty"].as_f64().unwrap_or(1.0) as f32,
            no_repeat_ngram_size: rules["no_repeat_ngram_size"].as_u64().unwrap_or(0) as usize,
            bad_words: words.chain(single).collect(),
            ..SamplingParams::default()
        };
        let rules = BeamRules::of(&sampling, &[1].into());
        assert!(rules.is_some());
        assert_finds(case, BeamParams { rules, ..params_of(case, BeamGroups::ONE) });
    }
    let neutral = SamplingParams { temperature: 0.0, repeat_last_n: Some(3), ..SamplingParams::default() };
    assert_eq!(BeamRules::of(&neutral, &[1].into()), None);
}
