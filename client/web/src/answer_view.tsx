// An answer: its tokens or its text, a legend of the colours, a line of figures, its passes.
import type {ComponentChildren} from "preact";
import {useEffect, useMemo, useRef, useState} from "preact/hooks";
import type {Answer, Figures} from "./answer";
import {originOf} from "./answer";
import {markdown} from "./markdown";
import {tokenLabel, visible} from "./safe";
import {T} from "./text";
import {Timeline} from "./timeline";
import {Alternatives, percent, TokenList, type TokenSource} from "./tokens";

// Renders again when the answer has grown.
export function useAnswer(answer: Answer | undefined): void {
  const [, again] = useState(0);
  useEffect(() => answer?.subscribe(() => again((n) => n + 1)), [answer]);
}

export function sourceOf(answer: Answer): TokenSource {
  return {
    count: () => answer.tokens.length,
    text: (i) => answer.tokens[i]!.text,
    look: (i) => `o-${originOf(answer.tokens[i]!)}`,
    subscribe: (listener) => answer.subscribe(listener),
  };
}

function TokenInfo({answer, i}: {answer: Answer; i: number}) {
  const token = answer.tokens[i]!;
  const t = T.token_info;
  const origin = originOf(token);
  return (
    <>
      <div>
        <strong class="mono">{tokenLabel(token.text).slice(0, 80)}</strong>{" "}
        <span class={`swatch o-${origin}`}>{T.origins[origin]}</span>
      </div>
      <div>
        {t.proposed} {token.proposed}, {t.confirmed} {token.confirmed}
        {token.corrected ? `, ${t.corrected}` : ""}
      </div>
      <div>
        {token.logprob !== undefined && `${t.probability} ${percent(Math.exp(token.logprob))} · `}
        {token.pass !== undefined && `${t.pass} ${token.pass} · `}
        {t.id} {token.id}
      </div>
      <Alternatives list={token.top ?? []} chosen={token.text} />
    </>
  );
}

export function AnswerTokens({answer, marks}: {answer: Answer; marks?: ReadonlySet<number>}) {
  const source = useMemo(() => sourceOf(answer), [answer]);
  return <TokenList source={source} label={T.token_info.list} marks={marks} info={(i) => <TokenInfo answer={answer} i={i} />} />;
}

// Markdown, rendered at most a few times a second while the text grows.
export function AnswerText({text}: {text: string}) {
  const [html, setHtml] = useState("");
  const state = useRef({timer: 0, cost: 0, text});
  state.current.text = text;
  useEffect(() => {
    const now = state.current;
    const render = () => {
      now.timer = 0;
      const began = performance.now();
      setHtml(markdown(now.text));
      now.cost = performance.now() - began;
    };
    if (now.timer === 0) now.timer = window.setTimeout(render, html === "" ? 0 : Math.max(100, 10 * now.cost));
  }, [text]);
  useEffect(() => () => window.clearTimeout(state.current.timer), []);
  return <div class="markdown" dangerouslySetInnerHTML={{__html: html}} />;
}

export function Legend({answer}: {answer: Answer}) {
  const total = answer.tokens.length;
  if (total === 0) return null;
  return (
    <ul class="legend" aria-label={T.figures.tokens}>
      {Object.entries(answer.counts).map(([origin, count]) => (
        <li key={origin}>
          <span class={`swatch o-${origin}`}>{T.origins[origin]}</span> {Math.round((100 * count) / total)} %
        </li>
      ))}
    </ul>
  );
}

const number = (value: number) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
export const seconds = (value: number) => (value < 1 ? `${(1000 * value).toFixed(0)} ms` : `${value.toFixed(2)} s`);
export const contractName = (word: string) => T.contracts[word] ?? word;

export function FigureLine({figures}: {figures: Figures}) {
  const f = T.figures;
  const parts: [string, string][] = [];
  if (figures.method) parts.push([f.method, figures.method]);
  if (figures.contract) parts.push([f.guarantee, contractName(figures.contract)]);
  parts.push([f.tokens, String(figures.tokens)]);
  if (figures.rate > 0) parts.push([f.rate, number(figures.rate)]);
  if (figures.perPass !== undefined) parts.push([f.perPass, figures.perPass.toFixed(2)]);
  if (figures.acceptance !== undefined) parts.push([f.acceptance, percent(figures.acceptance)]);
  if (figures.first !== undefined) parts.push([f.first, seconds(figures.first)]);
  if (figures.finish) parts.push([f.finish, figures.finish]);
  if (figures.seed) parts.push([f.seed, figures.seed]);
  return (
    <>
      <dl class="figures">
        {parts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {figures.satisfied !== undefined && <p class="note">{figures.satisfied ? f.satisfied : f.unsatisfied}</p>}
    </>
  );
}

export function Passes({answer}: {answer: Answer}) {
  if (!answer.trace || answer.trace.passes.length === 0) return null;
  return (
    <details class="passes">
      <summary>{T.chat.timeline}</summary>
      <Timeline rows={[{name: "", trace: answer.trace}]} />
    </details>
  );
}

export function Problem({text, children}: {text: string; children?: ComponentChildren}) {
  return (
    <div class="problem" role="alert">
      <span class="wrap">{visible(text)}</span> {children}
    </div>
  );
}
