// Numbers and reasons as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

const compact = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

/** Short enough for an axis. */
export const onAxis = (value) => (Math.abs(value) < 10000 ? brief(value) : compact.format(value));
export const count = (value) => (value == null ? "–" : whole.format(value));
export const brief = (value) => {
  if (value == null) return "–";
  const size = Math.abs(value);
  return size > 0 && size < 1 ? value.toPrecision(2) : size < 100 ? tenths.format(value) : whole.format(value);
};
export const share = (value) => (value == null ? "–" : `${tenths.format(100 * value)} %`);

const REASONS = {
  window: ["inside the window", "the window or the objective has no room"],
  policy: ["by the policy", "by the policy"],
  idle: ["head of an idle engine", "idle"],
  retracted: ["ran before and lost its memory", "retracted"],
  forced: ["had waited past T_max", "forced"],
  engine: ["by SGLang itself", "SGLang's slots, chunk or memory are used up"],
  kv: ["memory", "too little KV cache would stay free"],
  chunk: ["chunk", "the prompt tokens of a step are spent"],
  target: ["target", "the latency is above its target"],
  limit: ["limit", "so many per pass and no more"],
  "forced-limit": ["limit of forced ones", "older ones are forced in first"],
  "queue-requests": "too many requests wait",
  "queue-tokens": "too many prompt tokens wait",
  ttft: "the first token would come too late",
  "never-fits": "can never fit into the KV cache",
  invalid: "not a valid request",
  agreed: "just when SGLang did",
  would_have_held: "held it longer",
  would_have_admitted_earlier: "admitted it earlier",
};

/** A reason in words: `side` 0 of an admission, 1 of a hold. */
export function reason(name, side = 0) {
  const words = REASONS[name];
  return Array.isArray(words) ? words[side] : (words ?? name.replaceAll("_", " "));
}
