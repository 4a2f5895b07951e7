// A list of tokens that grows without being rendered again: each frame appends spans for what is new. Pointing at a token, or the
// arrow keys, shows its details.
import {useEffect, useRef, useState} from "preact/hooks";
import type {ComponentChildren} from "preact";
import {visible} from "./safe";
import {T} from "./text";

export interface TokenSource {
  count(): number;
  text(i: number): string;
  look(i: number): string; // classes
  subscribe?(listener: () => void): () => void;
}
interface Props {
  source: TokenSource;
  label: string;
  info: (i: number) => ComponentChildren;
  marks?: ReadonlySet<number>; // tokens to underline
}

const PER_FRAME = 400;
type Span = HTMLSpanElement & {at: number};

// Appends the tokens of a source to an element.
class Pane {
  readonly spans: Span[] = [];
  private line: HTMLElement | null = null;
  private frame = 0;
  private readonly stop: (() => void) | undefined;

  constructor(
    private readonly root: HTMLElement,
    private readonly source: TokenSource,
  ) {
    this.stop = source.subscribe?.(() => this.append());
    this.append();
  }
  close(): void {
    this.stop?.();
    cancelAnimationFrame(this.frame);
    this.root.replaceChildren();
  }

  private append(): void {
    if (this.frame !== 0) return;
    const end = Math.min(this.source.count(), this.spans.length + PER_FRAME);
    const lines = document.createDocumentFragment();
    let target: Node = this.line ?? lines;
    let pending: DocumentFragment | null = this.line ? document.createDocumentFragment() : null;
    for (let i = this.spans.length; i < end; ++i) {
      if (this.line === null) {
        this.line = document.createElement("div");
        this.line.className = "line";
        lines.append(this.line);
        target = this.line;
      }
      const text = this.source.text(i);
      const ends = text.endsWith("\n"); // a line of its own keeps the layout of each short
      const span = document.createElement("span") as Span;
      span.className = `t ${this.source.look(i)}`;
      span.textContent = visible(ends ? text.slice(0, -1) : text);
      if (ends) span.classList.add("end");
      span.at = i;
      this.spans.push(span);
      (pending ?? target).appendChild(span);
      if (!ends) continue;
      if (pending) target.appendChild(pending);
      pending = null;
      this.line = null;
    }
    if (pending) target.appendChild(pending);
    this.root.append(lines);
    if (end < this.source.count()) {
      this.frame = requestAnimationFrame(() => {
        this.frame = 0;
        this.append();
      });
    }
  }
}

export function TokenList({source, label, info, marks}: Props) {
  const root = useRef<HTMLDivElement>(null);
  const box = useRef<HTMLDivElement>(null);
  const pane = useRef<Pane | null>(null);
  const [active, setActive] = useState(-1);

  useEffect(() => {
    const made = new Pane(root.current!, source);
    pane.current = made;
    setActive(-1);
    return () => made.close();
  }, [source]);

  useEffect(() => {
    for (const span of pane.current?.spans ?? []) span.classList.toggle("differs", marks?.has(span.at) ?? false);
  }, [source, marks]);

  useEffect(() => {
    const span = pane.current?.spans[active];
    if (!span) return;
    span.classList.add("active");
    const of = span.getClientRects()[0] ?? span.getBoundingClientRect();
    const info = box.current!;
    const width = info.offsetWidth;
    info.style.left = `${Math.max(4, Math.min(of.left, innerWidth - width - 4))}px`;
    const below = of.bottom + 4 + info.offsetHeight < innerHeight;
    info.style.top = `${below ? of.bottom + 4 : Math.max(4, of.top - 4 - info.offsetHeight)}px`;
    return () => span.classList.remove("active");
  }, [active]);

  const at = (event: Event) => {
    const span = (event.target as Element).closest?.(".t") as Span | null;
    return span ? span.at : -1;
  };
  const move = (event: KeyboardEvent) => {
    const last = (pane.current?.spans.length ?? 0) - 1;
    const next: Record<string, number> = {ArrowRight: active + 1, ArrowDown: active + 1, ArrowLeft: active - 1, ArrowUp: active - 1, Home: 0, End: last};
    if (event.key === "Escape") return setActive(-1);
    if (!(event.key in next) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(last, next[event.key]!));
    pane.current?.spans[to]?.scrollIntoView({block: "nearest"});
    setActive(to);
  };

  return (
    <div class="tokens">
      <div
        ref={root}
        class="token-list"
        role="group"
        tabIndex={0}
        aria-label={label}
        onPointerOver={(event) => event.pointerType === "mouse" && setActive(at(event))}
        onPointerLeave={(event) => event.pointerType === "mouse" && setActive(-1)}
        onClick={(event) => setActive(at(event))}
        onKeyDown={move}
        onBlur={() => setActive(-1)}
      />
      <div ref={box} class="token-info" role="status" hidden={active < 0}>
        {active >= 0 && active < source.count() ? info(active) : T.token_info.none}
      </div>
    </div>
  );
}

// --- Details

export const percent = (p: number) => `${(100 * p).toFixed(p < 0.1 ? 2 : 1)} %`;

export function Alternatives({list, chosen}: {list: {token: string; logprob: number}[]; chosen: string}) {
  if (list.length === 0) return null;
  return (
    <table class="alternatives">
      <caption>{T.token_info.alternatives}</caption>
      <tbody>
        {list.map((one, i) => (
          <tr key={i} class={one.token === chosen ? "chosen" : ""}>
            <td class="mono">{visible(one.token).replaceAll("\n", "⏎").replaceAll(" ", "␣").slice(0, 24)}</td>
            <td class="number">{percent(Math.exp(one.logprob))}</td>
            <td class="meter">
              <meter min={0} max={1} value={Math.exp(one.logprob)} aria-hidden="true" />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
