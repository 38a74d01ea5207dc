//! Sequences with states of recurrent layers: where chunks end, which states are found again, and the cost of a
//! rejected draft.

use super::*;

const WIDE: Limits = Limits { max_batch_tokens: 1000, ..LIMITS };

/// Keys of the pages of a text that consists of these parts; texts with the same first parts share their first pages.
fn keys(n_tokens: usize, text: u128) -> Vec<PageKey> {
    (0..n_tokens / PAGE_SIZE).map(|page| page_key(text << 32 | page as u128)).collect()
}

fn scheduler(limits: Limits) -> Scheduler {
    Scheduler::new(limits, PagePool::with_states(200, 40))
}

/// Runs a request to the end of its prompt: its chunks, as starts and lengths.
fn prefill(scheduler: &mut Scheduler, request: u64, n_prompt: usize, keys: Vec<PageKey>) -> Vec<(usize, usize)> {
    scheduler.add(RequestId(request), Arrival { keys, ..arrival(n_prompt) });
    let mut chunks = Vec::new();
    loop {
        let [chunk] = step(scheduler)[..] else { unreachable!("one request runs") };
        chunks.push((chunk.start, chunk.n_tokens));
        if chunk.predicts {
            return chunks;
        }
    }
}

#[test]
fn chunks_end_where_states_are_kept() {
    let mut scheduler = scheduler(WIDE);
    // Every 64 tokens, and at the last page boundary.
    assert_eq!(prefill(&mut scheduler, 1, 150, keys(150, 1)), [(0, 64), (64, 64), (128, 16), (144, 6)]);
    scheduler.remove(RequestId(1));
    // Without recurrent layers, the prompt is one chunk.
    let mut plain = Scheduler::new(WIDE, PagePool::new(200));
    assert_eq!(prefill(&mut plain, 1, 150, keys(150, 1)), [(0, 150)]);
}

#[test]
fn prompt_with_a_known_beginning_is_computed_from_the_last_kept_state() {
    let mut scheduler = scheduler(WIDE);
    prefill(&mut scheduler, 1, 150, keys(150, 1));
    scheduler.remove(RequestId(1));
    // The same prompt, and a longer one: only the tokens after the last page boundary are computed.
    assert_eq!(prefill(&mut scheduler, 2, 150, keys(150, 1)), [(144, 6)]);
    scheduler.remove(RequestId(2));
    assert_eq!(prefill(&mut scheduler, 3, 200, keys(200, 1)), [(144, 48), (192, 8)]);
    scheduler.remove(RequestId(3));
    // One that differs after 100 tokens: its pages are known up to there, and a state is at 64.
    let edited: Vec<PageKey> = keys(100, 1).into_iter().chain(keys(200, 2).into_iter().skip(6)).collect();
    assert_eq!(prefill(&mut scheduler, 4, 150, edited), [(64, 64), (128, 16), (144, 6)]);
}

/// A template may change the text after a message, such as the mark of thoughts that it drops later.
#[test]
fn prompt_that_differs_behind_a_message_is_computed_from_the_last_boundary_in_it() {
    let mut scheduler = scheduler(Limits { tokens_per_state: 1024, ..WIDE });
    let places = vec![32, 80, 144];
    let with_places = |n_prompt, keys| Arrival { keys, state_places: places.clone(), ..arrival(n_prompt) };
    scheduler.add(RequestId(1), with_places(170, keys(170, 1)));
    let chunks: Vec<_> = (0..5).map(|_| step(&mut scheduler)[0]).map(|chunk| (chunk.start, chunk.n_tokens)).collect();
    assert_eq!(chunks, [(0, 32), (32, 48), (80, 64), (144, 16), (160, 10)]);
    scheduler.remove(RequestId(1));
    // Known up to the tokens 159, 100 and 40.
    for (request, n_common, first) in [(2, 159, 144), (3, 100, 80), (4, 40, 32)] {
        let mut text = keys(n_common, 1);
        text.extend(keys(300, u128::from(request)).into_iter().skip(text.len()));
        assert_eq!(prefill(&mut scheduler, request, 300, text)[0].0, first);
        scheduler.remove(RequestId(request));
    }
}

/// The next turn finds the generated tokens up to the last page boundary of the answer.
#[test]
fn next_turn_of_a_conversation_computes_little_more_than_what_is_new() {
    let mut scheduler = scheduler(WIDE);
    let text = keys(400, 1);
    prefill(&mut scheduler, 1, 70, text[..4].to_vec());
    // 60 tokens are generated; their pages' keys become known as they fill.
    for n_tokens in 72..=130usize {
        let step = scheduler.schedule();
        for (table, chunk) in scheduler.tables(&step).into_iter().zip(&step.chunks) {
            table.append(chunk.n_tokens).unwrap();
        }
        scheduler.advance(&step);
        let filled = n_tokens.is_multiple_of(PAGE_SIZE).then(|| text[n_tokens / PAGE_SIZE - 1]);
        scheduler.push_token(id(1), filled);
    }
    scheduler.remove(RequestId(1));
    let chunks = prefill(&mut scheduler, 2, 180, text[..11].to_vec());
    assert_eq!(chunks[0].0, 128, "{chunks:?}");
    scheduler.remove(RequestId(2));
    // If the answer is dropped from the conversation, from the end of the first prompt.
    let other: Vec<PageKey> = text[..4].iter().copied().chain(keys(300, 7).into_iter().skip(4)).collect();
    assert_eq!(prefill(&mut scheduler, 3, 100, other)[0].0, 64);
}

#[test]
fn rejected_drafts_take_a_sequence_back_to_before_the_step() {
    let mut scheduler = scheduler(WIDE);
    prefill(&mut scheduler, 1, 20, Vec::new());
    let mut step = scheduler.schedule();
    scheduler.add_drafts(&mut step, |_| 4);
    for (table, chunk) in scheduler.tables(&step).into_iter().zip(&step.chunks) {
        table.append(chunk.n_tokens).unwrap();
    }
    scheduler.advance(&step);
    // Two of four drafts are accepted, and the token after them.
    (0..3).for_each(|_| scheduler.push_token(id(1), None));
    scheduler.roll_back(&step);
    assert_eq!(super::step(&mut scheduler), [chunk(1, 20, 4, true)]);
    // All drafts are accepted: nothing is recomputed.
    let mut step = scheduler.schedule();
    scheduler.add_drafts(&mut step, |_| 4);
    for (table, chunk) in scheduler.tables(&step).into_iter().zip(&step.chunks) {
        table.append(chunk.n_tokens).unwrap();
    }
    scheduler.advance(&step);
    (0..5).for_each(|_| scheduler.push_token(id(1), None));
    scheduler.roll_back(&step);
    assert_eq!(super::step(&mut scheduler), [chunk(1, 29, 1, true)]);
}

/// However many drafts are accepted, a step ends at every fourth page boundary, and the last of them is found by the next turn.
#[test]
fn states_of_drafted_answers_are_kept_at_every_fourth_page_boundary() {
    let mut scheduler = scheduler(Limits { tokens_per_state: 1024, ..WIDE });
    let text = keys(300, 1);
    prefill(&mut scheduler, 1, 20, text[..1].to_vec());
    let mut n_tokens = 21;
    while n_tokens < 200 {
        let mut step = scheduler.schedule();
        scheduler.add_drafts(&mut step, |_| 5);
        for (table, chunk) in scheduler.tables(&step).into_iter().zip(&step.chunks) {
            table.append(chunk.n_tokens).unwrap();
        }
        scheduler.advance(&step);
        for _ in 0..=step.chunks[0].n_drafts {
            n_tokens += 1;
            let filled = n_tokens % PAGE_SIZE == 0;
            scheduler.push_token(id(1), filled.then(|| text[n_tokens / PAGE_SIZE - 1]));
        }
        scheduler.roll_back(&step);
    }
    scheduler.remove(RequestId(1));
    assert_eq!(prefill(&mut scheduler, 2, 300, text.clone())[0].0, 192);
    // Earlier states of the answer were replaced by later ones.
    let edited: Vec<PageKey> = text[..11].iter().copied().chain(keys(300, 2).into_iter().skip(11)).collect();
    scheduler.remove(RequestId(2));
    assert_eq!(prefill(&mut scheduler, 3, 300, edited)[0].0, 16);
}

/// Each rejection adds a token to be recomputed.
#[test]
fn drafts_follow_tokens_that_are_computed_again_while_these_are_few() {
    let mut scheduler = scheduler(WIDE);
    prefill(&mut scheduler, 1, 20, Vec::new());
    let mut n_drafts = Vec::new();
    for n_again in [1, 2, 3, 4, 5, 1] {
        let mut step = scheduler.schedule();
        assert_eq!(step.chunks, [chunk(1, if n_drafts.len() == 5 { 25 } else { 20 }, n_again, true)]);
        scheduler.add_drafts(&mut step, |_| 3);
        n_drafts.push(step.chunks[0].n_drafts);
        for (table, chunk) in scheduler.tables(&step).into_iter().zip(&step.chunks) {
            table.append(chunk.n_tokens).unwrap();
        }
        scheduler.advance(&step);
        scheduler.push_token(id(1), None);
        scheduler.roll_back(&step);
    }
    assert_eq!(n_drafts, [3, 3, 3, 3, 0, 3]);
}

/// However many prompts were kept, running sequences find states: unused kept states are evicted, oldest first.
#[test]
fn kept_states_make_room_for_running_sequences() {
    let mut scheduler = Scheduler::new(WIDE, PagePool::with_states(400, 6));
    for request in 1..20u64 {
        prefill(&mut scheduler, request, 150, keys(150, u128::from(request)));
        scheduler.remove(RequestId(request));
    }
    assert_eq!(prefill(&mut scheduler, 30, 150, keys(150, 19)), [(144, 6)]);
    scheduler.remove(RequestId(30));
    assert_eq!(prefill(&mut scheduler, 31, 150, keys(150, 1))[0].0, 0, "long gone");
}
