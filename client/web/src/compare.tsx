// Several answers to one prompt, side by side.
import {useEffect, useMemo, useRef, useState} from "preact/hooks";
import {Answer, hasChat, run} from "./answer";
import {AnswerTokens, contractName, FigureLine, Legend, Problem, useAnswer} from "./answer_view";
import type {Model} from "./api";
import {methodWord} from "./api";
import {diff} from "./diff";
import {bodyOf, methodsOf, offeredMethod} from "./request";
import {visible} from "./safe";
import {Choice, Field, MethodForm, modelOptions, SamplingForm} from "./settings";
import {loadSettings, loadText, saveSettings, saveText} from "./store";
import {T} from "./text";
import {Timeline} from "./timeline";

interface Variant {
  id: number;
  model: string;
  method: string;
  methods: Record<string, Record<string, string>>;
}
interface Result {
  variant: Variant;
  name: string;
  answer: Answer | null; // null: waits for its turn
}
type Mode = "turns" | "together";

let ids = 0;
const variantOf = (model: string, method: string): Variant => ({id: ++ids, model, method, methods: {}});

function nameOf(variant: Variant, model: Model | undefined, several: boolean): string {
  const method = offeredMethod(model, variant.method) ? variant.method : T.settings.auto(methodWord(model?.tandem.default_method ?? ""));
  const set = Object.entries(variant.methods[variant.method] ?? {}).filter(([, value]) => value !== "");
  return [several ? `${variant.model}: ${method}` : method, ...set.map(([name, value]) => `${name}=${value}`)].join(" ");
}

function Column({result, marks, baseline}: {result: Result; marks?: ReadonlySet<number>; baseline: boolean}) {
  useAnswer(result.answer ?? undefined);
  const answer = result.answer;
  return (
    <article class="column" aria-label={result.name}>
      <h3>{result.name}{baseline && <small> ({T.figures.baseline})</small>}</h3>
      {!answer && <p class="note">{T.compare.waiting}</p>}
      {answer && (
        <>
          {answer.tokens.length > 0 || !answer.text ? <AnswerTokens answer={answer} marks={marks} /> : <div class="plain">{visible(answer.text)}</div>}
          {answer.error && <Problem text={answer.error} />}
          <Legend answer={answer} />
          <FigureLine figures={answer.figures()} />
        </>
      )}
    </article>
  );
}

function Bars({title, rows}: {title: string; rows: {name: string; parts: {value: number; look: string; text: string}[]}[]}) {
  const most = Math.max(1e-9, ...rows.map((row) => row.parts.reduce((sum, part) => sum + part.value, 0)));
  return (
    <figure class="bars">
      <figcaption>{title}</figcaption>
      {rows.map((row, i) => (
        <div class="bar-row" key={i}>
          <span class="bar-name">{row.name}</span>
          <span class="bar">
            {row.parts.map((part, j) => (
              <span key={j} class={`bar-part ${part.look}`} style={{width: `${(100 * part.value) / most}%`}} />
            ))}
          </span>
          <span class="bar-value">{row.parts.map((part) => part.text).join(" + ")}</span>
        </div>
      ))}
    </figure>
  );
}

function Summary({results, mode, differing}: {results: Result[]; mode: Mode; differing: (number | undefined)[]}) {
  const done = results.filter((one) => one.answer?.state === "done");
  const f = T.figures;
  if (done.length === 0) return null;
  const figures = done.map((one) => ({name: one.name, ...one.answer!.figures()}));
  const first = figures[0]!.rate;
  const traces = done.flatMap((one) => (one.answer!.trace ? [{name: one.name, trace: one.answer!.trace}] : []));
  return (
    <section aria-label={T.compare.passes}>
      <p class="note">{T.compare.ran[mode]}</p>
      <div class="scroll" tabIndex={0} role="group" aria-label={T.views.compare}>
        <table class="summary">
          <thead>
            <tr>
              {[f.method, f.guarantee, f.tokens, f.rate, f.speedUp, f.perPass, f.acceptance, f.large, f.small, f.same].map((name, i) => (
                <th key={i} scope="col">{name}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {figures.map((one, i) => {
              const differs = differing[results.indexOf(done[i]!)];
              return (
                <tr key={i}>
                  <th scope="row">{one.name}</th>
                  <td>{one.contract ? contractName(one.contract) : ""}</td>
                  <td class="number">{one.tokens}</td>
                  <td class="number">{one.rate > 0 ? one.rate.toFixed(1) : "–"}</td>
                  <td class="number">{one.rate > 0 && first > 0 ? (one.rate / first).toFixed(2) : "–"}</td>
                  <td class="number">{one.perPass?.toFixed(2) ?? "–"}</td>
                  <td class="number">{one.acceptance !== undefined ? `${(100 * one.acceptance).toFixed(0)} %` : "–"}</td>
                  <td class="number">{one.largePasses ?? "–"}</td>
                  <td class="number">{one.smallPasses ?? 0}</td>
                  <td>{i === 0 ? f.baseline : differs === undefined ? "" : differs === 0 ? f.identical : f.differs(differs)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      <Bars title={T.compare.speed} rows={figures.map((one) => ({name: one.name, parts: [{value: one.rate, look: "b-large", text: one.rate.toFixed(1)}]}))} />
      <Bars
        title={T.compare.passes}
        rows={figures.map((one) => ({
          name: one.name,
          parts: [
            {value: one.largePasses ?? 0, look: "b-large", text: `${one.largePasses ?? 0} ${T.compare.large}`},
            {value: one.smallPasses ?? 0, look: "b-small", text: `${one.smallPasses ?? 0} ${T.compare.small}`},
          ],
        }))}
      />
      {traces.length > 0 && (
        <>
          <h3>{T.compare.timeline}</h3>
          <Timeline rows={traces} />
        </>
      )}
    </section>
  );
}

export function Compare({models}: {models: Model[]}) {
  const [prompt, setPrompt] = useState(() => loadText("compare.prompt", T.compare.sample));
  const [settings, setSettings] = useState(() => {
    const stored = loadSettings("compare");
    return {...stored, maxTokens: stored.maxTokens || "128"};
  });
  const [mode, setMode] = useState<Mode>("turns");
  const [variants, setVariants] = useState<Variant[]>([]);
  const [results, setResults] = useState<Result[]>([]);
  const [ran, setRan] = useState<Mode>("turns");
  const [running, setRunning] = useState(false);
  const [problem, setProblem] = useState("");
  const controller = useRef<AbortController | null>(null);
  const model = models.find((one) => one.id === settings.model) ?? models[0];

  useEffect(() => saveText("compare.prompt", prompt), [prompt]);
  useEffect(() => saveSettings("compare", settings), [settings]);
  // At first, every method of the model. The first variant is the reference.
  useEffect(() => {
    if (!model) return;
    const words = methodsOf(model).map((one) => methodWord(one.method));
    words.sort((a, b) => Number(b === "autoregressive") - Number(a === "autoregressive"));
    setVariants(words.map((word) => variantOf(model.id, word)));
  }, [model?.id]);

  const start = async () => {
    const several = new Set(variants.map((one) => one.model)).size > 1;
    const made: {result: Result; path: string; body: Record<string, unknown>}[] = [];
    try {
      for (const variant of variants) {
        const of = models.find((one) => one.id === variant.model)!;
        const chat = hasChat(of);
        const body = bodyOf({...settings, method: variant.method, methods: variant.methods, schema: "", tools: "", contract: ""}, of, chat);
        if (chat) body.messages = [{role: "user", content: prompt}];
        else body.prompt = prompt;
        made.push({result: {variant, name: nameOf(variant, of, several), answer: null}, path: chat ? "v1/chat/completions" : "v1/completions", body});
      }
    } catch (error) {
      return setProblem((error as Error).message);
    }
    setProblem("");
    setRunning(true);
    setRan(mode);
    const abort = new AbortController();
    controller.current = abort;
    const all = made.map((one) => one.result);
    const show = () => setResults(all.map((one) => ({...one})));
    show();
    const one = async (i: number) => {
      all[i]!.answer = new Answer();
      show();
      await run(all[i]!.answer!, made[i]!.path, made[i]!.body, abort.signal);
    };
    if (mode === "together") await Promise.all(made.map((_, i) => one(i)));
    else for (let i = 0; i < made.length && !abort.signal.aborted; ++i) await one(i);
    setRunning(false);
    show();
  };

  const change = (id: number, members: Partial<Variant>) => setVariants(variants.map((one) => (one.id === id ? {...one, ...members} : one)));
  const marks = useMemo(() => {
    const first = results[0]?.answer;
    if (running || !first) return [];
    return results.map((one, i) =>
      i === 0 || one.answer?.state !== "done" ? undefined : diff(first.tokens.map((t) => t.text), one.answer.tokens.map((t) => t.text)),
    );
  }, [results, running]);

  return (
    <div class="compare">
      <p class="note">{T.compare.intro}</p>
      <div>
        <div>
          <Choice label={T.settings.model} value={model?.id ?? ""} options={modelOptions(models)} onChange={(id) => setSettings({...settings, model: id})} />
          <Field label={T.compare.prompt} value={prompt} onChange={setPrompt} rows={4} />
          <SamplingForm model={model} value={settings} full={false} onChange={setSettings} />
        </div>
        <fieldset>
          <legend>{T.compare.variants}</legend>
          <div class="variants">
          {variants.map((variant, i) => {
            const of = models.find((one) => one.id === variant.model);
            return (
              <div class="variant" key={variant.id}>
                <div class="row">
                  <strong>{i + 1}</strong>
                  <span class="spring" />
                  <button type="button" class="small" aria-label={T.compare.remove(nameOf(variant, of, true))}
                    onClick={() => setVariants(variants.filter((one) => one !== variant))}>×</button>
                </div>
                {models.length > 1 && (
                  <Choice label={T.settings.model} value={variant.model} options={modelOptions(models)} onChange={(id) => change(variant.id, {model: id})} />
                )}
                <MethodForm model={of} method={variant.method} values={variant.methods}
                  onMethod={(method) => change(variant.id, {method})} onValues={(methods) => change(variant.id, {methods})} />
              </div>
            );
          })}
          </div>
          <button type="button" disabled={!model} onClick={() => setVariants([...variants, variantOf(model!.id, "")])}>{T.compare.add}</button>
        </fieldset>
      </div>
      <fieldset class="mode">
        <legend>{T.compare.mode}</legend>
        {(["turns", "together"] as const).map((one) => (
          <label key={one}>
            <input type="radio" name="mode" value={one} checked={mode === one} onChange={() => setMode(one)} /> {T.compare[one]}
            <small> {one === "turns" ? T.compare.turnsHelp : T.compare.togetherHelp}</small>
          </label>
        ))}
      </fieldset>
      <div class="row">
        {running ? (
          <button type="button" class="primary" onClick={() => controller.current?.abort()}>{T.compare.stop}</button>
        ) : (
          <button type="button" class="primary" disabled={!model || variants.length === 0} onClick={() => void start()}>{T.compare.run}</button>
        )}
      </div>
      {problem && <Problem text={problem} />}
      {results.length > 0 && (
        <>
          <div class="columns">
            {results.map((one, i) => <Column key={one.variant.id} result={one} marks={marks[i]?.changed} baseline={i === 0} />)}
          </div>
          {!running && marks.some((one) => (one?.changed.size ?? 0) > 0) && <p class="note">{T.compare.differences}</p>}
          {!running && <Summary results={results} mode={ran} differing={results.map((_, i) => marks[i]?.differing)} />}
        </>
      )}
    </div>
  );
}
