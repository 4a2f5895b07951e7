// A text as a heat map of log-probabilities, by one or two models.
import {useEffect, useMemo, useRef, useState} from "preact/hooks";
import {messageOf} from "./answer";
import {Problem} from "./answer_view";
import {alternativesOf, complete, type Alternative, type Model} from "./api";
import {bytesOf, Characters, tokenLabel} from "./safe";
import {Choice, Field, modelOptions} from "./settings";
import {loadText, saveText} from "./store";
import {T} from "./text";
import {Alternatives, percent, TokenList, type TokenSource} from "./tokens";

interface Scored {
  model: string;
  tokens: {text: string; logprob: number | null; top: Alternative[]}[];
}

const SHADES = 8;
// Shades are equal steps of log-probability down to -8 (0.03 %).
const shade = (logprob: number | null) => (logprob === null ? "h-none" : `h-${Math.min(SHADES, Math.floor(-logprob))}`);

async function scored(model: string, text: string, signal: AbortSignal): Promise<Scored> {
  const answer = await complete({model, prompt: text, echo: true, max_tokens: 0, logprobs: 5}, signal);
  const of = answer.choices[0].logprobs;
  const characters = new Characters();
  return {
    model,
    tokens: of.tokens.map((token: string, i: number) => ({text: characters.next(token, bytesOf(token)), logprob: of.token_logprobs[i], top: alternativesOf(of, i)})),
  };
}

function Heat({result}: {result: Scored}) {
  const {tokens} = result;
  const source = useMemo<TokenSource>(
    () => ({count: () => tokens.length, text: (i) => tokens[i]!.text, look: (i) => shade(tokens[i]!.logprob)}),
    [result],
  );
  const values = tokens.flatMap((one) => (one.logprob === null ? [] : [one.logprob]));
  const total = values.reduce((sum, value) => sum + value, 0);
  const mean = values.length > 0 ? total / values.length : 0;
  const s = T.score;
  return (
    <article class="column" aria-label={result.model}>
      <h3>{result.model}</h3>
      <TokenList
        source={source}
        label={s.list}
        info={(i) => {
          const one = tokens[i]!;
          return (
            <>
              <div><strong class="mono">{tokenLabel(one.text).slice(0, 80)}</strong></div>
              <div>{one.logprob === null ? s.unscored : `${s.total} ${one.logprob.toFixed(3)} · ${T.token_info.probability} ${percent(Math.exp(one.logprob))}`}</div>
              <Alternatives list={one.top} chosen={one.text} />
            </>
          );
        }}
      />
      <dl class="figures">
        <div><dt>{s.tokens}</dt><dd>{tokens.length}</dd></div>
        <div><dt>{s.total}</dt><dd>{total.toFixed(2)}</dd></div>
        <div><dt>{s.mean}</dt><dd>{mean.toFixed(3)}</dd></div>
        <div><dt>{s.perplexity}</dt><dd>{Math.exp(-mean).toFixed(2)}</dd></div>
      </dl>
    </article>
  );
}

export function Score({models}: {models: Model[]}) {
  const [text, setText] = useState(() => loadText("score.text", T.score.sample));
  const [first, setFirst] = useState("");
  const [second, setSecond] = useState("");
  const [results, setResults] = useState<Scored[]>([]);
  const [problem, setProblem] = useState("");
  const [running, setRunning] = useState(false);
  const controller = useRef<AbortController | null>(null);
  const one = models.find((model) => model.id === first) ?? models[0];
  const two = models.find((model) => model.id === second);

  useEffect(() => saveText("score.text", text), [text]);

  const start = async () => {
    const abort = new AbortController();
    controller.current = abort;
    setProblem("");
    setRunning(true);
    setResults([]);
    const made: Scored[] = [];
    try {
      for (const model of [one, two]) {
        if (!model) continue;
        made.push(await scored(model.id, text, abort.signal));
        setResults([...made]);
      }
    } catch (error) {
      if (!abort.signal.aborted) setProblem(messageOf(error));
    }
    setRunning(false);
  };

  return (
    <div class="score">
      <p class="note">{T.score.intro}</p>
      <Field label={T.score.text} value={text} onChange={setText} rows={5} />
      <div class="split">
        <Choice label={T.score.first} value={one?.id ?? ""} options={modelOptions(models)} onChange={setFirst} />
        <Choice label={T.score.second} value={two?.id ?? ""} options={[["", T.score.none], ...modelOptions(models)]} onChange={setSecond} />
      </div>
      <div class="row">
        <button type="button" class="primary" disabled={!one || running || text === ""} onClick={() => void start()}>{T.score.run}</button>
      </div>
      {problem && <Problem text={problem} />}
      {results.length > 0 && <p class="note">{T.score.legend}</p>}
      <div class="columns">
        {results.map((result) => <Heat key={result.model} result={result} />)}
      </div>
    </div>
  );
}
