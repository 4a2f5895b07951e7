// The server, live. Asks for metrics once a second while the view is shown and the page is visible.
import {useEffect, useMemo, useState} from "preact/hooks";
import {messageOf} from "./answer";
import {Problem} from "./answer_view";
import {ApiError, metrics, methodWord, version, type Model} from "./api";
import {Chart, type Line} from "./chart";
import {Scrape} from "./metrics";
import {T} from "./text";

const EVERY = 1000; // milliseconds
const KEPT = 120; // scrapes

const bytes = (n: number) => (n >= 1 << 30 ? `${(n / (1 << 30)).toFixed(2)} GiB` : `${(n / (1 << 20)).toFixed(1)} MiB`);

// The labels that a family has, as lines: name of the line -> labels.
function groups(scrape: Scrape, name: string, keys: string[]): Map<string, Record<string, string>> {
  const out = new Map<string, Record<string, string>>();
  for (const {labels} of scrape.all(name)) {
    const of = Object.fromEntries(keys.map((key) => [key, labels[key] ?? ""]));
    out.set(keys.map((key) => of[key]).filter(Boolean).join(" · "), of);
  }
  return out;
}

// Growth per second between neighbours.
function rates(scrapes: Scrape[], value: (scrape: Scrape) => number): (number | null)[] {
  return scrapes.map((scrape, i) => {
    const before = scrapes[i - 1];
    if (!before) return null;
    return Math.max(0, value(scrape) - value(before)) / Math.max(1e-3, scrape.at - before.at);
  });
}

function useScrapes(shown: boolean, session: number): {scrapes: Scrape[]; problem: string; live: boolean} {
  const [scrapes, setScrapes] = useState<Scrape[]>([]);
  const [problem, setProblem] = useState("");
  const [visible, setVisible] = useState(!document.hidden);
  useEffect(() => {
    const changed = () => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  const live = shown && visible;
  useEffect(() => {
    if (!live) return;
    const abort = new AbortController();
    let timer = 0;
    const ask = async () => {
      const began = performance.now();
      try {
        const scrape = new Scrape(await metrics(abort.signal), Date.now() / 1000);
        setProblem("");
        setScrapes((all) => {
          const last = all.at(-1);
          const continued = last && scrape.at - last.at < 10 ? all : []; // a pause is no zero
          return [...continued, scrape].slice(-KEPT);
        });
      } catch (error) {
        if (abort.signal.aborted) return;
        setProblem(error instanceof ApiError && error.status === 404 ? T.server.noMetrics : messageOf(error));
        if (error instanceof ApiError && error.status === 401) return; // until there is another token
      }
      if (!abort.signal.aborted) timer = window.setTimeout(() => void ask(), Math.max(100, EVERY - (performance.now() - began)));
    };
    void ask();
    return () => {
      abort.abort();
      window.clearTimeout(timer);
    };
  }, [live, session]);
  return {scrapes, problem, live};
}

// `session` changes with the token.
export function ServerView({models, shown, session}: {models: Model[]; shown: boolean; session: number}) {
  const {scrapes, problem, live} = useScrapes(shown, session);
  const [release, setRelease] = useState("");
  useEffect(() => {
    if (shown && !release) version().then(setRelease, () => {});
  }, [shown]);
  const last = scrapes.at(-1);
  const s = T.server;

  const charts = useMemo(() => {
    if (!last) return null;
    const times = scrapes.map((one) => one.at);
    const byMethod = groups(last, "tandem_generated_tokens_total", ["model", "method"]);
    // Methods that have generated nothing would hide the others.
    const active = [...byMethod].filter(([, of]) => last.sum("tandem_generated_tokens_total", of) > 0);
    const rate: Line[] = (active.length > 0 ? active : [...byMethod].slice(0, 1)).map(([name, of]) => ({
      name,
      values: rates(scrapes, (one) => one.sum("tandem_generated_tokens_total", of)),
    }));
    const kv: Line[] = [...groups(last, "tandem_kv_cache_usage_ratio", ["model", "device"])].map(([name, of]) => ({
      name,
      values: scrapes.map((one) => one.sum("tandem_kv_cache_usage_ratio", of)),
    }));
    const queue: Line[] = [
      {name: s.running, values: scrapes.map((one) => one.sum("tandem_requests_running"))},
      {name: s.waiting, values: scrapes.map((one) => one.sum("tandem_requests_waiting") + one.sum("tandem_requests_tokenizing"))},
    ];
    return {times, rate, kv, queue, byMethod};
  }, [scrapes]);

  const usage = (of: Record<string, string>) => {
    const drafted = last!.sum("tandem_spec_decode_num_draft_tokens_total", of);
    const passes = last!.sum("tandem_tokens_per_pass_count", of);
    return {
      tokens: last!.sum("tandem_generated_tokens_total", of),
      requests: last!.sum("tandem_requests_total", of),
      failed: last!.sum("tandem_requests_failed_total", of),
      acceptance: drafted > 0 ? `${((100 * last!.sum("tandem_spec_decode_num_accepted_tokens_total", of)) / drafted).toFixed(1)} %` : "–",
      perPass: passes > 0 ? (last!.sum("tandem_tokens_per_pass_sum", of) / passes).toFixed(2) : "–",
    };
  };

  return (
    <div class="server">
      <p class="note">
        {s.intro} {release && `${s.version} ${release}.`} <span class={live && !problem ? "badge on" : "badge"}>{live && !problem ? s.live : s.paused}</span>
      </p>
      {problem && <Problem text={problem} />}
      {charts && (
        <div class="charts">
          <section><h3>{s.rate}</h3><Chart label={s.chart(s.rate)} times={charts.times} lines={charts.rate} /></section>
          <section><h3>{s.kv}</h3><Chart label={s.chart(s.kv)} times={charts.times} lines={charts.kv} most={0.1} percent /></section>
          <section><h3>{s.queue}</h3><Chart label={s.chart(s.queue)} times={charts.times} lines={charts.queue} most={4} /></section>
        </div>
      )}
      {charts && (
        <>
          <h3>{s.byMethod}</h3>
          <div class="scroll" tabIndex={0} role="group" aria-label={s.byMethod}>
            <table>
              <thead>
                <tr>{[s.model, s.method, s.tokens, s.now, s.acceptance, s.perPass, s.requests, s.failed].map((name) => <th key={name} scope="col">{name}</th>)}</tr>
              </thead>
              <tbody>
                {[...charts.byMethod].map(([name, of]) => {
                  const one = usage(of);
                  const now = rates(scrapes.slice(-6), (scrape) => scrape.sum("tandem_generated_tokens_total", of)).filter((rate) => rate !== null);
                  return (
                    <tr key={name}>
                      <td>{of.model}</td>
                      <td>{of.method}</td>
                      <td class="number">{one.tokens}</td>
                      <td class="number">{now.length > 0 ? (now.reduce((sum, rate) => sum + rate, 0) / now.length).toFixed(1) : "–"}</td>
                      <td class="number">{one.acceptance}</td>
                      <td class="number">{one.perPass}</td>
                      <td class="number">{one.requests}</td>
                      <td class="number">{one.failed}</td>
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
          <h3>{s.memory}</h3>
          <dl class="figures">
            <div><dt>{s.process}</dt><dd>{bytes(last!.sum("process_resident_memory_bytes"))}</dd></div>
            <div><dt>{s.processor}</dt><dd>{((rates(scrapes.slice(-6), (one) => one.sum("process_cpu_seconds_total")).at(-1) ?? 0) * 100).toFixed(1)} %</dd></div>
            {[...groups(last!, "tandem_device_memory_bytes", ["model", "device", "kind"])].map(([name, of]) => (
              <div key={name}>
                <dt>{`${of.model}, ${of.device}: ${of.kind === "weights" ? s.weights : of.kind === "kv_cache" ? s.kvCache : of.kind}`}</dt>
                <dd>{bytes(last!.sum("tandem_device_memory_bytes", of))}</dd>
              </div>
            ))}
          </dl>
        </>
      )}
      <h3>{s.deployments}</h3>
      <div class="scroll" tabIndex={0} role="group" aria-label={s.deployments}>
        <table>
          <thead>
            <tr>{[s.name, s.models, s.methods, s.context].map((name) => <th key={name} scope="col">{name}</th>)}</tr>
          </thead>
          <tbody>
            {models.map((one) => (
              <tr key={one.id}>
                <th scope="row">{one.id}</th>
                <td>
                  {one.tandem.components.map((part, i) => (
                    <div key={i}>
                      {part.role}: {part.name} ({part.architecture}, {part.dtype}, {part.device}){part.device_lost ? ` – ${s.lost}` : ""}
                    </div>
                  ))}
                </td>
                <td>{one.tandem.methods.map((method) => methodWord(method.method)).join(", ")}</td>
                <td class="number">{one.tandem.limits.context_length}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
