// The sampling parameters of the API: what the forms show. The same list with ranges is in docs/parameters.md; the server
// checks the values. Left empty, a parameter is not sent, and the server uses the model's default.

/**
 * Each parameter: its name in the API, a label, one line of explanation, and the `kind` of its field: `number`,
 * `boolean`, `choice` (with `values`), `text`, `lines` (strings, one per line, where \n is a line break), `ids` (token ids)
 * or `json`. `step` is the step of the field's arrows.
 */
const number = (name, label, help, step = 1) => ({ name, label, help, kind: "number", step });
const boolean = (name, label, help) => ({ name, label, help, kind: "boolean" });
const other = (kind) => (name, label, help, more = {}) => ({ name, label, help, kind, ...more });
const [choice, text, lines, ids, json] = ["choice", "text", "lines", "ids", "json"].map(other);

export const GROUPS = [
  { title: "Basics", parameters: [
    number("max_tokens", "Max tokens", "Maximum number of tokens to generate."),
    number("temperature", "Temperature", "Higher values give more varied text; 0 always takes the most likely token.", 0.1),
    number("top_p", "Top p", "Sample only from the most likely tokens whose probabilities sum to this value; 1 disables it.", 0.05),
    number("top_k", "Top k", "Sample only from this many of the most likely tokens; 0 disables it."),
    number("min_p", "Min p", "Sample only from tokens with at least this fraction of the largest probability; 0 disables it.", 0.01),
    number("repetition_penalty", "Repetition penalty", "Values above 1 make tokens of the prompt and the answer less likely; 1 disables it.", 0.05),
    number("seed", "Seed", "The same seed gives the same answer; if empty, a random seed is used."),
    lines("stop", "Stop strings", "The answer ends before the first of these strings: one per line, \\n is a line break."),
  ] },
  { title: "More ways to truncate", parameters: [
    number("typical_p", "Typical p", "Locally typical sampling: keep tokens whose information content is closest to the expected one; 1 disables it.", 0.05),
    number("top_n_sigma", "Top n sigma", "Keep tokens whose logit is within this many standard deviations of the largest; 0 disables it.", 0.1),
    number("epsilon_cutoff", "Epsilon cutoff", "Keep tokens with at least this probability; 0 disables it.", 0.0001),
    number("eta_cutoff", "Eta cutoff", "Keep tokens with at least this probability, or less where the entropy is high; 0 disables it.", 0.0001),
    number("tfs", "Tail-free z", "Tail-free sampling: cut where the curve of sorted probabilities has used this share of its bends; 1 disables it.", 0.05),
    number("top_a", "Top a", "Keep tokens with at least this value times the square of the largest probability; 0 disables it.", 0.05),
    number("smoothing_factor", "Smoothing factor", "Bends the logits by a parabola: tokens near the most likely one come nearer, others move away; 0 disables it.", 0.05),
    number("smoothing_curve", "Smoothing curve", "Curve of the smoothing: 1 is a parabola, 3 a cubic curve.", 0.1),
    number("xtc_probability", "XTC probability", "Probability of removing all tokens above the XTC threshold except the least likely one; 0 disables it.", 0.05),
    number("xtc_threshold", "XTC threshold", "Minimum probability of the tokens that XTC may remove; above 0.5 disables it.", 0.05),
  ] },
  { title: "Temperature that adapts", parameters: [
    number("dynatemp_range", "Dynamic temperature range", "The temperature varies with the entropy by up to this much, up and down; 0 disables it.", 0.1),
    number("dynatemp_exponent", "Dynamic temperature exponent", "Exponent of the normalized entropy in the dynamic temperature.", 0.1),
    choice("mirostat", "Mirostat", "Keeps the surprise of the text near a target; 1 and 2 are its versions. Not together with truncation.", { values: [0, 1, 2] }),
    number("mirostat_tau", "Mirostat tau", "Target surprise of mirostat, in bits per token.", 0.1),
    number("mirostat_eta", "Mirostat eta", "Learning rate of mirostat.", 0.05),
    number("adaptive_target", "Adaptive target", "Adaptive-p: prefers tokens whose probability is near this value, which moves so that the text averages to it; -1 disables it.", 0.05),
    number("adaptive_decay", "Adaptive decay", "Adaptive-p: the average is over about 1 / (1 - decay) tokens.", 0.05),
  ] },
  { title: "Repetition", parameters: [
    number("repeat_last_n", "Repeat last n", "Number of last tokens that the repetition penalty considers; -1 means all."),
    number("encoder_repetition_penalty", "Bonus for the prompt's tokens", "Values above 1 favour tokens of the prompt; 1 disables it.", 0.05),
    number("no_repeat_ngram_size", "No repeated n-grams", "No sequence of this many tokens occurs twice; 0 disables it."),
    number("presence_penalty", "Presence penalty", "Subtracted from the logit of each token that occurs in the answer.", 0.1),
    number("frequency_penalty", "Frequency penalty", "Subtracted from the logit of each token, once for every time it occurs in the answer.", 0.1),
    number("dry_multiplier", "DRY multiplier", "DRY: strength of the penalty for tokens that would continue a repetition; 0 disables it.", 0.1),
    number("dry_base", "DRY base", "DRY: factor by which the penalty grows with each further token of the repetition.", 0.05),
    number("dry_allowed_length", "DRY allowed length", "DRY: length in tokens of the longest repetition that is not penalized."),
    number("dry_penalty_last_n", "DRY last n", "DRY: number of last tokens to search for repetitions; -1 means all."),
    lines("dry_sequence_breakers", "DRY sequence breakers", "DRY: strings that end a repetition: one per line, \\n is a line break."),
  ] },
  { title: "Single tokens and words", parameters: [
    json("logit_bias", "Logit bias", "Added to the logits of tokens: a JSON object of token ids and values; 100 forces, -100 bans.", { placeholder: '{"42": -100}' }),
    number("logit_bias_tokens", "Bias ends after", "Number of tokens of the answer after which the bias no longer acts; never if empty."),
    lines("bad_words", "Bad words", "Words to ban: one per line. They can still occur inside other words, or made of other tokens."),
    ids("allowed_token_ids", "Allowed token ids", "Only these tokens can be generated. Separate ids by commas."),
    ids("stop_token_ids", "Stop token ids", "Tokens that end the answer, in addition to the model's own. Separate ids by commas."),
    number("min_tokens", "Min tokens", "Minimum number of tokens before the answer may end."),
    boolean("ignore_eos", "Ignore end of sequence", "Continue after the model's end-of-sequence tokens."),
    boolean("include_stop_str_in_output", "Keep stop strings", "Keep the matched stop string or stop token in the text."),
    boolean("skip_special_tokens", "Skip special tokens", "Leave special tokens out of the text."),
  ] },
  { title: "Beam search", parameters: [
    boolean("use_beam_search", "Beam search", "Search for the most likely answer. Not together with penalties, truncation or structured output."),
    boolean("stochastic_beam_search", "Stochastic beam search", "Sample different answers without replacement (Gumbel top-k), with the seed."),
    number("best_of", "Beams", "Beam search: the number of beams."),
    number("length_penalty", "Length penalty", "Beam search: a beam's log-probability is divided by its length raised to this power.", 0.1),
    number("num_beam_groups", "Beam groups", "Diverse beam search: the beams are divided into this many groups, which avoid each other's tokens."),
    number("diversity_penalty", "Diversity penalty", "Diverse beam search: the cost of a token that earlier groups chose at the same step.", 0.1),
    choice("early_stopping", "Early stopping", "Beam search: when to stop. false: a better answer is unlikely. true: enough answers. never: none is possible.", { values: [false, true, "never"] }),
  ] },
  { title: "Order and scheduling", parameters: [
    lines("samplers", "Samplers", "The samplers to apply, in this order, one per line: penalties, dry, temperature, smoothing, top_n_sigma, top_k, typical_p, epsilon_cutoff, eta_cutoff, tfs, top_a, top_p, min_p, xtc."),
    number("truncate_prompt_tokens", "Truncate prompt", "Keep only this many of the prompt's last tokens; -1 keeps as many as fit into the context."),
    number("priority", "Priority", "Scheduling priority from -100 to 100; lower values run first."),
    number("deadline_ms", "Deadline", "Time limit for the request in milliseconds."),
    text("cache_salt", "Cache salt", "Prefix-cache entries are shared only between requests with the same salt."),
  ] },
];

/** What a model thinks before it answers: in chats only. */
export const THINKING = { title: "Thinking", parameters: [
  choice("reasoning_effort", "Thinking effort", "How much the model thinks before it answers, where its chat template can choose; none turns thinking off.", { values: ["none", "minimal", "low", "medium", "high", "xhigh", "max"] }),
  number("thinking_token_budget", "Thinking budget", "Maximum number of tokens of thoughts; then the answer begins. Only for models that think; -1 is no limit.", 64),
] };

export const PARAMETERS = GROUPS.flatMap((group) => group.parameters);
export const parameter = (name) => PARAMETERS.find((each) => each.name === name);

/** Sets of values to start from. Values that a preset does not name go back to the model's defaults. */
export const PRESETS = [
  { name: "Model defaults", help: "Nothing is sent: the values of the model's own configuration.", values: {} },
  { name: "Exact", help: "Always the most likely token: the same answer every time.", values: { temperature: 0 } },
  { name: "Balanced", help: "Varied, but close to what the model finds likely.", values: { temperature: 0.7, top_p: 0.95, min_p: 0.05 } },
  { name: "Creative", help: "Unusual words, kept coherent by min p.", values: { temperature: 1.2, min_p: 0.08, repetition_penalty: 1.05 } },
  { name: "No repetition", help: "For models that loop: DRY and a mild penalty.", values: { temperature: 0.8, top_p: 0.95, dry_multiplier: 0.8, repetition_penalty: 1.1 } },
];
