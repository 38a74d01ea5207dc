//! The engine without HTTP: its tokens equal those of the plain loop in any batch; rejection, cancellation and failure.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hearth_engine::{
    EngineOptions, EngineState, Event, EventStream, Failure, FinishReason, StartError, SubmitError,
    request::{EngineRequest, ModelLimits, RequestParts, StopConditions, Strategy},
};
use hearth_model::{
    TokenId,
    decode::sampling::SamplingParams,
    gpt::{Gpt, pooling::Pooling},
    ops::KvDtype,
    weights::model_dir::LoadedModel,
};
use hearth_server::engine::Engine;

use crate::{
    plain_generation::{GenerateOptions, generate},
    support::{self, EOS, MAX_SEQ_LEN, OPTIONS, VOCAB_SIZE, engine, is_idle, metric, wait_for},
};

pub(crate) const LIMITS: ModelLimits = ModelLimits {
    vocab_size: VOCAB_SIZE,
    max_seq_len: MAX_SEQ_LEN,
    max_batch_size: 8,
    n_pages: 2048,
    is_recurrent: false,
    is_encoder: false,
    max_source_len: 0,
};

pub(crate) fn parts(prompt_ids: Vec<TokenId>, max_tokens: usize, sampling: SamplingParams) -> RequestParts {
    let stop = StopConditions { max_tokens, ..StopConditions::default() };
    RequestParts { prompt_ids: prompt_ids.into(), sampling, stop, ..RequestParts::default() }
}

pub(crate) fn request(parts: RequestParts) -> EngineRequest {
    EngineRequest::new(parts, &LIMITS).unwrap()
}

pub(crate) fn prompt(n_tokens: usize, salt: u32) -> Vec<TokenId> {
    (0..n_tokens as u32).map(|at| (at * 31 + salt * 17 + at * at * salt) % 256).collect()
}

/// Requests of mixed lengths, every second one greedy, the others sampled with their own seeds.
pub(crate) fn mixed_requests() -> Vec<RequestParts> {
    let n_prompts = [1, 3, 150, 17, 64, 5, 33, 16, 2, 99, 7, 48, 1, 20, 130, 11];
    let requests = n_prompts.into_iter().enumerate().map(|(index, n_prompt)| {
        let seeded = SamplingParams {
            temperature: 0.9,
            top_p: 0.95,
            repetition_penalty: 1.1,
            seed: index as u64,
            ..SamplingParams::default()
        };
        let sampling = if index % 2 == 0 { SamplingParams::greedy() } else { seeded };
        parts(prompt(n_prompt, index as u32), 12 + 5 * (index % 4), sampling)
    });
    requests.collect()
}

pub(crate) async fn collect(mut events: EventStream, n_requests: usize) -> Vec<(Vec<TokenId>, Option<FinishReason>)> {
    let mut outcomes = vec![(Vec::new(), None); n_requests];
    while let Some((index, event)) = events.recv().await {
        assert_eq!(outcomes[index].1, None, "nothing follows the end of a request");
        match event.unwrap() {
            Event::Token { id, .. } => outcomes[index].0.push(id),
            Event::Finished { reason, .. } => outcomes[index].1 = Some(reason),
            Event::PromptLogprobs(_) => {}
            Event::Embedding(_) => panic!("nobody asked for one"),
        }
    }
    outcomes
}

pub(crate) async fn run(engine: &Engine, requests: &[RequestParts]) -> Vec<Vec<TokenId>> {
    let events = engine.submit(requests.iter().cloned().map(request).collect()).unwrap();
    collect(events, requests.len()).await.into_iter().map(|(ids, _)| ids).collect()
}

/// The tokens that the plain loop generates for each request.
pub(crate) fn plain_loop_tokens(gpt: &Gpt, requests: &[RequestParts]) -> Vec<Vec<TokenId>> {
    plain_loop_tokens_with(gpt, None, requests)
}

/// [`plain_loop_tokens`] with a KV cache of this dtype.
fn plain_loop_tokens_with(gpt: &Gpt, kv_dtype: Option<KvDtype>, requests: &[RequestParts]) -> Vec<Vec<TokenId>> {
    let one = |parts: &RequestParts| {
        let options = GenerateOptions {
            max_tokens: parts.stop.max_tokens,
            kv_dtype,
            sampling: parts.sampling.clone(),
            eos_token_ids: Vec::new(),
        };
        generate(gpt, &parts.prompt_ids, &options)
    };
    requests.iter().map(one).collect()
}

#[tokio::test]
async fn mixed_batch_gives_each_request_the_tokens_of_the_plain_loop() {
    let requests = mixed_requests();
    for kv_cache_dtype in [None, Some(KvDtype::F16)] {
        let alone = plain_loop_tokens_with(&support::gpt(), kv_cache_dtype, &requests);
        // Token budgets that split prompts into chunks of all sizes, and batch sizes that make some requests wait.
        for (max_batch_size, max_batch_tokens) in [(16, 512), (16, 17), (3, 8), (1, 1)] {
            let engine = engine(EngineOptions { max_batch_size, max_batch_tokens, kv_cache_dtype, ..OPTIONS });
            // The second time with pages from the prefix cache.
            for round in 0..2 {
                let together = run(&engine, &requests).await;
                let how = format!("batch of {max_batch_size}, {max_batch_tokens} tokens per step, round {round}");
                assert_eq!(together, alone, "{how}, {kv_cache_dtype:?}");
                wait_for(&engine, is_idle).await;
            }
        }
    }
}

#[tokio::test]
async fn preempted_requests_give_the_tokens_of_the_plain_loop() {
    let requests = mixed_requests();
    // A batch of up to 16, and 12 pages; the longest request needs 11.
    let options = EngineOptions { kv_cache_tokens: Some(192), max_batch_size: 16, ..OPTIONS };
    for (max_batch_tokens, kv_cache_dtype) in [(64, None), (16, None), (16, Some(KvDtype::F16))] {
        let alone = plain_loop_tokens_with(&support::gpt(), kv_cache_dtype, &requests);
        let engine = engine(EngineOptions { max_batch_tokens, kv_cache_dtype, ..options.clone() });
        assert_eq!(run(&engine, &requests).await, alone);
        wait_for(&engine, is_idle).await;
        assert!(metric(&engine, "num_preemptions_total") > 0.0, "the test shows nothing");
    }
}

#[tokio::test]
async fn preempted_requests_report_each_prompt_logprob_once() {
    let options = EngineOptions { kv_cache_tokens: Some(192), max_batch_size: 16, max_batch_tokens: 16, ..OPTIONS };
    let engine = engine(options);
    let requests: Vec<_> =
        mixed_requests().into_iter().map(|parts| RequestParts { prompt_logprobs: Some(0), ..parts }).collect();
    let mut events = engine.submit(requests.iter().cloned().map(request).collect()).unwrap();
    let mut n_reported = vec![0; requests.len()];
    while let Some((index, event)) = events.recv().await {
        if let Event::PromptLogprobs(logprobs) = event.unwrap() {
            n_reported[index] += logprobs.len();
        }
    }
    assert_eq!(n_reported, requests.iter().map(|parts| parts.prompt_ids.len()).collect::<Vec<_>>());
    assert!(metric(&engine, "num_preemptions_total") > 0.0, "the test shows nothing");
}

#[tokio::test]
async fn short_prompt_is_answered_before_an_earlier_long_prompt() {
    let engine = engine(OPTIONS);
    // 32 steps of 64 tokens alone.
    let long = request(parts(prompt(2000, 1), 1, SamplingParams::greedy()));
    let short = request(parts(prompt(20, 2), 1, SamplingParams::greedy()));
    let mut events = engine.submit(vec![long, short]).unwrap();
    assert!(matches!(events.recv().await, Some((1, Ok(Event::Token { .. })))));
    // The short prompt shares a step with the long one; the rest of the long one follows.
    assert_eq!(collect(events, 2).await[0].0.len(), 1);
    assert!(metric(&engine, "iteration_tokens_total_count") <= 33.0);
}

#[tokio::test]
async fn deadline_ends_running_and_queued_requests() {
    let engine = engine(EngineOptions { max_batch_size: 1, ..OPTIONS });
    let deadline = Duration::from_millis(20);
    let late =
        || RequestParts { deadline: Some(deadline), ..parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()) };
    // The second one never leaves the queue.
    let mut events = engine.submit(vec![request(late()), request(RequestParts { choice: 1, ..late() })]).unwrap();
    let mut ended = Vec::new();
    while let Some((index, event)) = events.recv().await {
        match event {
            Ok(Event::Token { .. }) => assert!(!ended.contains(&index)),
            Err(Failure::TimedOut(after)) => {
                assert_eq!(after, deadline);
                ended.push(index);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(ended.len(), 2);
    wait_for(&engine, is_idle).await;
}

#[tokio::test]
async fn deadline_is_measured_from_the_arrival_of_the_request() {
    let engine = engine(OPTIONS);
    let deadline = Some(Duration::from_secs(5));
    let late = RequestParts { deadline, ..parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()) };
    let arrived = Instant::now().checked_sub(Duration::from_secs(6)).unwrap();
    let mut events = engine.submit_at(vec![request(late)], arrived).unwrap();
    assert!(matches!(events.recv().await, Some((0, Err(Failure::TimedOut(_))))));
}

/// A deadline that passes while the only step runs.
#[tokio::test]
async fn result_computed_after_the_deadline_is_a_timeout() {
    let engine = engine(EngineOptions { max_batch_tokens: MAX_SEQ_LEN, ..OPTIONS });
    for strategy in [Strategy::Sample, Strategy::Embed { pooling: Pooling::Mean }] {
        let deadline = Some(Duration::from_millis(1));
        let late = RequestParts { deadline, strategy, ..parts(prompt(8000, 1), 1, SamplingParams::greedy()) };
        let mut events = engine.submit(vec![request(late)]).unwrap();
        let event = events.recv().await;
        assert!(matches!(event, Some((0, Err(Failure::TimedOut(_))))), "{event:?}");
        assert!(events.recv().await.is_none());
        wait_for(&engine, is_idle).await;
    }
}

#[tokio::test]
async fn queued_requests_finish_in_priority_order() {
    let engine = engine(EngineOptions { max_batch_size: 1, ..OPTIONS });
    let with = |priority, salt| RequestParts { priority, ..parts(prompt(4, salt), 20, SamplingParams::greedy()) };
    let requests = [with(0, 1), with(1, 2), with(0, 3), with(-1, 4)];
    let mut events = engine.submit(requests.into_iter().map(request).collect()).unwrap();
    let mut order = Vec::new();
    while let Some((index, event)) = events.recv().await {
        if let Ok(Event::Finished { .. }) = event {
            order.push(index);
        }
    }
    assert_eq!(order, [3, 0, 2, 1]);
}

#[tokio::test]
async fn separately_submitted_requests_give_the_tokens_of_one_submission() {
    let engine = engine(OPTIONS);
    let requests = mixed_requests();
    let together = run(&engine, &requests).await;
    let streams: Vec<EventStream> =
        requests.iter().map(|parts| engine.submit(vec![request(parts.clone())]).unwrap()).collect();
    for (events, expected) in streams.into_iter().zip(together) {
        assert_eq!(collect(events, 1).await, [(expected, Some(FinishReason::Length))]);
    }
}

#[tokio::test]
async fn stop_token_ends_the_answer_unless_min_tokens_forbids_it() {
    let engine = engine(OPTIONS);
    let greedy = parts(prompt(9, 2), 24, SamplingParams::greedy());
    let free = run(&engine, std::slice::from_ref(&greedy)).await.remove(0);
    let stopper = free[7];
    let first = free.iter().position(|&id| id == stopper).unwrap();
    let mut stopping = greedy.clone();
    stopping.stop.stop_token_ids = Arc::new([stopper, EOS].into());
    let events = engine.submit(vec![request(stopping.clone())]).unwrap();
    assert_eq!(collect(events, 1).await, [(free[..=first].to_vec(), Some(FinishReason::Stop))]);
    stopping.stop.min_tokens = first + 2;
    let events = engine.submit(vec![request(stopping)]).unwrap();
    let outcome = collect(events, 1).await.remove(0);
    assert!(outcome.0.len() > first + 1);
    assert!(!outcome.0[..=first].contains(&stopper));
}

#[tokio::test]
async fn full_queue_rejects_submissions_until_a_place_is_free() {
    let engine = engine(EngineOptions { max_queue: 1, max_batch_size: 1, ..OPTIONS });
    let long = || vec![request(parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()))];
    let running = engine.submit(long()).unwrap();
    wait_for(&engine, |stats| stats.running == 1).await;
    let waiting = engine.submit(long()).unwrap();
    assert_eq!(engine.submit(long()).unwrap_err(), SubmitError::QueueFull { max_queue: 1 });
    // Cancelled in the queue, then while decoding.
    wait_for(&engine, |stats| stats.waiting == 1).await;
    drop(waiting);
    wait_for(&engine, |stats| stats.waiting == 0).await;
    let next = engine.submit(long()).unwrap();
    drop(running);
    wait_for(&engine, |stats| stats.running == 1 && stats.waiting == 0).await;
    drop(next);
    wait_for(&engine, is_idle).await;
}

#[tokio::test]
async fn cancelling_during_prefill_frees_the_kv_pages() {
    // One token per step: the prefill takes 4,000 of them.
    let engine = engine(EngineOptions { max_batch_size: 1, max_batch_tokens: 1, ..OPTIONS });
    let events = engine.submit(vec![request(parts(prompt(4000, 1), 1, SamplingParams::greedy()))]).unwrap();
    wait_for(&engine, |stats| stats.free_pages < stats.n_pages).await;
    drop(events);
    wait_for(&engine, is_idle).await;
}

#[tokio::test]
async fn panic_in_a_step_fails_all_requests_and_the_engine() {
    let engine = engine(OPTIONS);
    let mut healthy = engine.submit(vec![request(parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()))]).unwrap();
    assert!(matches!(healthy.recv().await, Some((0, Ok(Event::Token { .. })))));
    // This request was validated for a larger vocabulary: its token id is outside of this model's.
    let wrong = ModelLimits { vocab_size: 100_000, max_seq_len: 100, ..LIMITS };
    let wrong = EngineRequest::new(parts(vec![99_999], 4, SamplingParams::greedy()), &wrong).unwrap();
    let mut poison = engine.submit(vec![wrong]).unwrap();
    assert!(matches!(poison.recv().await, Some((0, Err(Failure::Failed(_))))));
    assert_eq!(poison.recv().await.map(|(index, _)| index), None);
    let last = loop {
        match healthy.recv().await {
            Some((_, Ok(Event::Token { .. }))) => {}
            other => break other,
        }
    };
    assert!(matches!(last, Some((0, Err(Failure::Failed(_))))), "{last:?}");
    wait_for(&engine, |stats| matches!(stats.state, EngineState::Failed(_)) && is_idle(stats)).await;
    let again = engine.submit(vec![request(parts(prompt(4, 1), 1, SamplingParams::greedy()))]);
    assert_eq!(again.unwrap_err(), SubmitError::Stopped);
}

#[tokio::test]
async fn stopping_the_engine_fails_running_requests_with_stopped() {
    let engine = engine(OPTIONS);
    let mut events = engine.submit(vec![request(parts(prompt(4, 1), MAX_SEQ_LEN, SamplingParams::greedy()))]).unwrap();
    engine.stop();
    let last = loop {
        match events.recv().await {
            Some((_, Ok(Event::Token { .. }))) => {}
            other => break other,
        }
    };
    assert!(matches!(&last, Some((0, Err(Failure::Stopped)))), "{last:?}");
    assert_eq!(engine.submit(Vec::new()).unwrap_err(), SubmitError::Stopped);
}

#[test]
fn invalid_engine_options_are_rejected_at_start() {
    let start = |options| match Engine::start(|| Ok(support::model()), options) {
        Err(StartError::Options(message)) => message,
        other => panic!("{other:?}"),
    };
    assert!(start(EngineOptions { max_queue: 0, ..OPTIONS }).contains("`--max-queue` must be at least 1"));
    let message = start(EngineOptions { max_batch_size: 9, max_batch_tokens: 8, ..OPTIONS });
    assert!(message.contains("got 8 and 9"), "{message}");
}

#[test]
fn model_load_error_or_panic_is_a_start_error() {
    let broken = hearth_model::Error::Param { name: "--model", what: "is not there".into() };
    assert!(matches!(Engine::start(|| Err::<LoadedModel, _>(broken), OPTIONS), Err(StartError::Model(_))));
    let panicking = Engine::start(|| -> hearth_model::Result<LoadedModel> { panic!("no weights") }, OPTIONS);
    assert!(matches!(panicking, Err(StartError::Thread(message)) if message == "no weights"));
}
