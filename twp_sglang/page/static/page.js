// Puts what the server tells into the page. Everything is text: nothing from the server becomes HTML.

import { Chart, element } from "./charts.js";
import { follow, headers, rememberKey } from "./stream.js";
import { brief, count, reason, share } from "./words.js";

const KEPT = 600;
const BASE = "twp";
const SPEAK_EVERY_MS = 20000;
const by = (id) => document.getElementById(id);

const looks = [];
let chosen = 0;
let revision = null;
let spoken = { kind: "", at: 0 };

const limit = (state) => state.itl_slo_ms ?? state.itl_target_ms ?? null;
// Policy slo reports a window and asks its model instead.
const gates = (state) => state.window_tokens != null && state.policy !== "slo";
const used = (state) => (state.kv_free == null ? null : 100 * (1 - state.kv_free));

const charts = [
  {
    id: "chart-step", title: "Step time", unit: "ms, median of half a second",
    empty: "No step was measured in the last five minutes.",
    series: [
      { label: "measured", color: "--blue", value: (s) => s.steps?.step_ms },
      { label: "longest", color: "--grey", value: (s) => s.steps?.step_ms_max },
      { label: "predicted", color: "--orange", value: (s) => s.steps?.predicted_ms },
      { label: "objective", color: "--green", dash: true, value: limit },
      { label: "baseline", color: "--purple", dash: true, value: (s) => (limit(s) == null ? s.l_min_ms : null) },
    ],
  },
  {
    id: "chart-window", title: "Load and window", unit: "output tokens still owed", floor: 16, empty: "Nothing known.",
    series: [
      { label: "load K", color: "--blue", fill: true, value: (s) => s.load_tokens },
      { label: "window H", color: "--orange", value: (s) => (gates(s) ? s.window_tokens : null) },
    ],
  },
  {
    id: "chart-queue", title: "Requests", unit: "waiting and running", floor: 4, empty: "Nothing known.",
    series: [
      { label: "waiting", color: "--orange", fill: true, value: (s) => s.queue },
      { label: "late", color: "--purple", value: (s) => s.late },
      { label: "running", color: "--blue", value: (s) => s.batch },
    ],
  },
  {
    id: "chart-chunk", title: "Prompt tokens per step", unit: "largest of half a second", floor: 16,
    empty: "No step was measured in the last five minutes.",
    series: [
      { label: "in a step", color: "--blue", fill: true, value: (s) => s.steps?.prefill_tokens_max },
      { label: "bound while somebody decodes", color: "--orange", dash: true, value: (s) => s.chunk_tokens },
    ],
  },
  {
    id: "chart-kv", title: "KV cache", unit: "% used", floor: 100, empty: "Nothing known.",
    series: [
      { label: "used", color: "--blue", fill: true, value: used },
      { label: "bound of admissions", color: "--orange", dash: true,
        value: (s) => (s.kv_threshold == null ? null : 100 * (1 - s.kv_threshold)) },
    ],
  },
  {
    id: "chart-rate", title: "Tokens per second", unit: "over measured steps", floor: 10,
    empty: "No step was measured in the last five minutes.",
    series: [
      { label: "output", color: "--blue", value: (s) => s.steps?.output_tokens_per_s },
      { label: "prompt", color: "--orange", value: (s) => s.steps?.prompt_tokens_per_s },
    ],
  },
].map((chart) => new Chart(by("charts"), chart));

function take(look) {
  looks.push(look);
  if (looks.length > KEPT) looks.shift();
}

const stateOf = (look) => look.replicas?.find((one) => one.replica === chosen) ?? look.replicas?.[0] ?? null;

function show() {
  const look = looks.at(-1);
  if (!look) return;
  if (look.error) {
    mode("bad", "no answer");
    say("bad", look.error);
  } else {
    const state = stateOf(look);
    by("model").textContent = look.model;
    document.title = `${state.queue ? `${count(state.queue)} waiting` : "TWP"} · ${look.model}`;
    replicas(look.replicas);
    modes(look.replicas);
    whys(look.replicas, state);
    numbers(state);
    tables(state);
    if (state.revision !== revision) configuration(state.revision);
  }
  const times = looks.map((one) => one.time_unix_s);
  const states = looks.map(stateOf);
  for (const chart of charts) chart.update(times, states);
}

function mode(kind, text) {
  by("mode").dataset.kind = kind;
  by("mode").textContent = text;
}

function modes(all) {
  const fallen = all.filter((one) => one.fallback_reason);
  if (fallen.length) {
    mode("bad", fallen.length === all.length ? "fell back to stock" : `${fallen.length} of ${all.length} fell back`);
  } else if (all[0].deciding) mode("good", `${all[0].policy} decides`);
  else mode("waiting", "observes, SGLang decides");
}

function kindOf(state) {
  if (state.fallback_reason) return "bad";
  return state.queue ? "warn" : state.batch ? "good" : "waiting";
}

function say(kind, text) {
  by("why-card").dataset.kind = kind;
  by("why").textContent = text;
  // A screen reader hears of every change of kind, and of numbers now and then.
  const now = performance.now();
  if (kind === spoken.kind && now - spoken.at < SPEAK_EVERY_MS) return;
  if (by("spoken").textContent !== text) by("spoken").textContent = text;
  spoken = { kind, at: now };
}

function whys(all, state) {
  say(kindOf(state), all.length > 1 ? `Replica ${state.replica}: ${state.why}` : state.why);
  const others = all.filter((one) => one !== state);
  by("why-others").hidden = !others.length;
  by("why-others").replaceChildren(
    ...others.map((one) => {
      const line = element("li");
      line.textContent = `Replica ${one.replica}: ${one.why}`;
      return line;
    }),
  );
}

function replicas(all) {
  by("replica-choice").hidden = all.length < 2;
  if (by("replica").options.length === all.length) return;
  by("replica").replaceChildren(...all.map((one) => new Option(String(one.replica), String(one.replica))));
  by("replica").value = String(chosen);
}

function numbers(state) {
  const goal = limit(state);
  // After a fallback nobody measures: the last value is history.
  const step = state.steps?.step_ms ?? (state.fallback_reason ? null : state.itl_ms);
  const tiles = [
    ["Inter-token latency", brief(step), "ms", goal == null ? sigma(state) : `objective ${brief(goal)} ms`, goal != null && step > goal],
    ["Running", count(state.batch), "", `${brief(state.steps?.output_tokens_per_s)} tokens per second`],
    ["Waiting", count(state.queue), "", state.late == null ? held(state) : `${count(state.late)} of them late`],
    ["KV cache used", share(state.kv_free == null ? null : 1 - state.kv_free), "", `of ${count(state.kv_capacity_tokens)} tokens`],
    ["Admitted", count(state.admitted), "", state.forced ? `${count(state.forced)} of them forced` : "since the start"],
  ];
  if (gates(state)) {
    tiles.splice(1, 0, ["Load in the window", count(state.load_tokens), "", `of ${count(state.window_tokens)} tokens`]);
  }
  if (state.steps?.error != null) {
    tiles.splice(2, 0, ["Prediction", `${state.steps.error >= 0 ? "+" : "−"}${share(Math.abs(state.steps.error))}`, "", "off the measured step"]);
  }
  by("numbers").replaceChildren(
    ...tiles.map(([name, value, unit, below, over]) => {
      const tile = element("div", over ? "over" : "");
      element("dt", "", tile).textContent = name;
      const said = element("dd", "", tile);
      said.append(value, " ");
      if (unit) element("small", "", said).textContent = unit;
      element("div", "below", said).textContent = below;
      return tile;
    }),
  );
}

function sigma(state) {
  if (state.sigma == null) return "no objective is stated";
  if (state.l_min_source === "learning") return "baseline not learned yet";
  return `slowdown ${brief(state.sigma)} over the baseline`;
}

function held(state) {
  return state.queue ? `held by ${state.closed || "nothing yet"}` : "nobody is held";
}

function tables(state) {
  reasons("admissions", state.admissions, 0, "No request was admitted yet.");
  reasons("holds", state.holds, 1, "Nobody was held yet.");
  const refused = state.refusals && Object.keys(state.refusals).length;
  by("refusals-card").hidden = !refused;
  if (refused) reasons("refusals", state.refusals, 1, "");
  by("shadow-card").hidden = !state.shadow;
  if (state.shadow) reasons("shadow", state.shadow, 0, "No request was admitted yet.");
}

function reasons(id, counts, side, none) {
  const rows = Object.entries(counts ?? {}).sort((one, other) => other[1] - one[1]);
  const total = rows.reduce((sum, [, value]) => sum + value, 0);
  if (!total) {
    const row = element("tr");
    const cell = element("td", "note", row);
    cell.textContent = none;
    by(id).replaceChildren(row);
    return;
  }
  by(id).replaceChildren(
    ...rows.map(([name, value]) => {
      const row = element("tr");
      const head = element("th", "", row);
      head.scope = "row";
      head.textContent = reason(name, side);
      const bar = element("meter", "", element("td", "share", row));
      bar.max = 1;
      bar.value = value / total;
      bar.setAttribute("aria-label", `${head.textContent}: ${share(value / total)}`);
      element("td", "count", row).textContent = count(value);
      return row;
    }),
  );
}

async function configuration(wanted) {
  revision = wanted;
  try {
    const answer = await fetch(`${BASE}/config`, { headers: headers(), cache: "no-store" });
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    fill(await answer.json());
  } catch (error) {
    by("revision").textContent = `cannot be read: ${error.message}`;
    revision = null;
  }
}

function fill({ config, revision: number, changes }) {
  const touched = new Set(changes.flatMap((one) => Object.keys(one.changes)));
  by("revision").textContent = number ? `changed ${number === 1 ? "once" : `${number} times`} since the start` : "as started";
  by("config").replaceChildren(
    ...Object.entries(config).filter(([name]) => name !== "evidence").map(([name, value]) => {
      const row = element("div", touched.has(name) ? "changed" : "");
      element("code", "", element("dt", "", row)).textContent = name;
      element("code", "", element("dd", "", row)).textContent = value == null ? "unset" : String(value);
      return row;
    }),
  );
  const past = [...changes].reverse().map((one) =>
    line(
      new Date(1000 * one.time_unix_s).toLocaleString(),
      `${Object.entries(one.changes).map(([name, [from, to]]) => `${name} ${from ?? "unset"} → ${to ?? "unset"}`).join(", ")} (${one.by})`,
    ));
  by("changes").replaceChildren(...(past.length ? past : [line("none", "")]));
}

function line(name, value) {
  const row = element("tr");
  const head = element("th", "", row);
  head.scope = "row";
  element("code", "", head).textContent = name;
  element("code", "", element("td", "", row)).textContent = value;
  return row;
}

function connect() {
  by("key-form").hidden = true;
  mode("waiting", "connecting");
  follow(`${BASE}/events`, {
    past(all) {
      looks.length = 0;
      for (const look of all) take(look);
      show();
    },
    look(one) {
      take(one);
      show();
    },
    locked() {
      by("key-form").hidden = false;
      mode("warn", "locked");
      say("warn", "This server shows its state only to who has its API key.");
    },
    lost(why) {
      mode("bad", "connection lost");
      say("bad", `No connection: ${why}. Trying again.`);
    },
  });
}

by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  rememberKey(by("key").value.trim());
  by("key").value = "";
  connect();
});
by("replica").addEventListener("change", () => {
  chosen = Number(by("replica").value);
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.rebuild()));
connect();
