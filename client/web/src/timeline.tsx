// A time line of passes on a canvas: for each answer a lane for each model, a bar for each pass. Bars of verifications show accepted
// and rejected drafts. A table has the same as text.
import {useEffect, useMemo, useRef, useState} from "preact/hooks";
import type {Pass, Trace} from "./api";
import {T} from "./text";
import {colour, useTheme} from "./theme";

export interface TimelineRow {
  name: string;
  trace: Trace;
}
interface Bar {
  pass: Pass;
  lane: number;
}

const LANE = 22;
const GAP = 4;
const LEFT = 90;
const AXIS = 18;
const MOST_IN_TABLE = 500;
const ROLES = ["large", "small", "encoder", "worker"];
const ms = (us: number) => (us / 1000).toFixed(us < 100_000 ? 2 : 0);

export function describe(pass: Pass): string {
  return T.timeline.pass({
    pass: pass.pass,
    role: T.timeline.lanes[pass.role] ?? pass.role,
    kind: T.timeline.kinds[pass.kind] ?? pass.kind,
    ms: ms(pass.end_us - pass.start_us),
    at: ms(pass.start_us),
    rows: pass.rows,
    accepted: pass.accepted,
    rejected: pass.rejected,
    requests: pass.batch_requests,
  });
}

// Round steps of an axis with about this many marks.
function stepOf(range: number, marks: number): number {
  const rough = range / marks;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= rough)!;
}

export function Timeline({rows}: {rows: TimelineRow[]}) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [active, setActive] = useState(-1);
  const [width, setWidth] = useState(600);
  const [view, setView] = useState({zoom: 1, from: 0}); // `from`: share of the hidden part before the view
  const theme = useTheme();

  const {bars, lanes, end, omitted} = useMemo(() => {
    const bars: Bar[] = [];
    const lanes: string[] = [];
    let end = 1;
    let omitted = 0;
    for (const row of rows) {
      omitted += row.trace.omitted;
      for (const role of ROLES) {
        const of = row.trace.passes.filter((pass) => pass.role === role);
        if (of.length === 0) continue;
        for (const pass of of) {
          bars.push({pass, lane: lanes.length});
          end = Math.max(end, pass.end_us);
        }
        const lane = T.timeline.lanes[role] ?? role;
        lanes.push(row.name ? `${row.name} · ${lane}` : lane);
      }
    }
    return {bars, lanes, end, omitted};
  }, [rows]);

  const left = rows.some((row) => row.name) ? 2 * LEFT : LEFT;
  const height = lanes.length * (LANE + GAP) + AXIS;
  const span = end / view.zoom;
  const start = (end - span) * view.from;
  const x = (us: number) => left + ((us - start) / span) * (width - left - 4);

  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.max(300, Math.floor(entry!.contentRect.width))));
    observer.observe(canvas.current!.parentElement!);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const on = canvas.current!.getContext("2d")!;
    const scale = devicePixelRatio || 1;
    canvas.current!.width = width * scale;
    canvas.current!.height = height * scale;
    on.setTransform(scale, 0, 0, scale, 0, 0);
    on.clearRect(0, 0, width, height);
    const [text, line, accepted, rejected, outline] = ["text", "line", "accepted", "rejected", "focus"].map((name) => colour(`--${name}`));
    on.font = "12px system-ui, sans-serif";
    on.textBaseline = "middle";
    const step = stepOf(span, Math.max(2, (width - left) / 90));
    for (let at = Math.ceil(start / step) * step; at <= start + span; at += step) {
      on.fillStyle = line!;
      on.fillRect(x(at), 0, 1, height - AXIS);
      on.fillStyle = text!;
      const label = `${(at / 1000).toFixed(step < 1000 ? 1 : 0)} ms`;
      on.fillText(label, Math.min(x(at), width - on.measureText(label).width), height - AXIS / 2);
    }
    on.save();
    on.beginPath();
    on.rect(left, 0, width - left, height);
    on.clip();
    bars.forEach(({pass, lane}, i) => {
      const from = x(pass.start_us);
      const to = Math.max(from + 1, x(pass.end_us) - 0.5);
      if (to < left || from > width) return;
      const top = lane * (LANE + GAP);
      on.fillStyle = colour(`--kind-${pass.kind in T.timeline.kinds ? pass.kind : "decode"}`);
      on.fillRect(from, top, to - from, LANE);
      const checked = pass.accepted + pass.rejected;
      if (checked > 0) {
        const share = (LANE * pass.accepted) / checked;
        on.fillStyle = rejected!;
        on.fillRect(from, top, to - from, LANE);
        on.fillStyle = accepted!;
        on.fillRect(from, top + LANE - share, to - from, share);
      }
      if (i === active) {
        on.strokeStyle = outline!;
        on.lineWidth = 2;
        on.strokeRect(from + 1, top + 1, Math.max(2, to - from - 2), LANE - 2);
      }
    });
    on.restore();
    on.fillStyle = text!;
    lanes.forEach((name, i) => on.fillText(name, 0, i * (LANE + GAP) + LANE / 2, left - 6));
  }, [bars, width, height, active, view, theme]);

  if (bars.length === 0) return <p class="note">{T.timeline.none}</p>;
  const pick = (event: MouseEvent) => {
    const box = canvas.current!.getBoundingClientRect();
    const at = start + ((event.clientX - box.left - left) / (width - left - 4)) * span;
    const lane = Math.floor((event.clientY - box.top) / (LANE + GAP));
    const near = (2 * span) / (width - left); // two pixels
    setActive(bars.findIndex((bar) => bar.lane === lane && at >= bar.pass.start_us - near && at <= bar.pass.end_us + near));
  };
  const move = (event: KeyboardEvent) => {
    const next: Record<string, number> = {ArrowRight: active + 1, ArrowLeft: active - 1, Home: 0, End: bars.length - 1};
    if (event.key === "+") return setView({...view, zoom: Math.min(512, view.zoom * 2)});
    if (event.key === "-") return setView({...view, zoom: Math.max(1, view.zoom / 2)});
    if (event.key === "Escape") return setActive(-1);
    if (!(event.key in next)) return;
    event.preventDefault();
    const to = Math.max(0, Math.min(bars.length - 1, next[event.key]!));
    const pass = bars[to]!.pass;
    if (view.zoom > 1 && (pass.start_us < start || pass.end_us > start + span)) {
      setView({...view, from: Math.max(0, Math.min(1, (pass.start_us - span / 2) / (end - span)))});
    }
    setActive(to);
  };
  const kinds = [...new Set(bars.filter((bar) => bar.pass.accepted + bar.pass.rejected === 0).map((bar) => bar.pass.kind))];
  const checks = bars.some((bar) => bar.pass.accepted + bar.pass.rejected > 0);
  return (
    <div class="timeline">
      <div class="row">
        <button type="button" onClick={() => setView({...view, zoom: Math.min(512, view.zoom * 2)})}>{T.timeline.zoomIn}</button>
        <button type="button" onClick={() => setView({...view, zoom: Math.max(1, view.zoom / 2)})} disabled={view.zoom === 1}>
          {T.timeline.zoomOut}
        </button>
        {view.zoom > 1 && (
          <input
            type="range"
            min={0}
            max={1}
            step={0.001}
            value={view.from}
            aria-label={T.timeline.whole}
            onInput={(event) => setView({...view, from: Number(event.currentTarget.value)})}
          />
        )}
        <ul class="legend">
          {kinds.map((kind) => (
            <li key={kind}><span class={`swatch k-${kind}`}>{T.timeline.kinds[kind] ?? kind}</span></li>
          ))}
          {checks && <li><span class="swatch k-accepted">{T.timeline.accepted}</span></li>}
          {checks && <li><span class="swatch k-rejected">{T.timeline.rejected}</span></li>}
        </ul>
      </div>
      <div class="canvas">
        <canvas
          ref={canvas}
          style={{width: `${width}px`, height: `${height}px`}}
          role="img"
          tabIndex={0}
          aria-label={T.timeline.label(bars.length)}
          onMouseMove={pick}
          onClick={pick}
          onKeyDown={move}
        />
      </div>
      <p class="note" role="status">{active >= 0 && bars[active] ? describe(bars[active].pass) : " "}</p>
      {omitted > 0 && <p class="note">{T.timeline.omitted(omitted)}</p>}
      <details>
        <summary>{T.timeline.table}</summary>
        <div class="scroll" tabIndex={0} role="group" aria-label={T.timeline.table}>
          <table>
            <thead>
              <tr>{T.timeline.columns.map((name) => <th key={name} scope="col">{name}</th>)}</tr>
            </thead>
            <tbody>
              {bars.slice(0, MOST_IN_TABLE).map(({pass, lane}, i) => (
                <tr key={i}>
                  <td class="number">{pass.pass}</td>
                  <td class="number">{ms(pass.start_us)}</td>
                  <td class="number">{ms(pass.end_us - pass.start_us)}</td>
                  <td>{lanes[lane]}</td>
                  <td>{T.timeline.kinds[pass.kind] ?? pass.kind}</td>
                  <td class="number">{pass.rows}</td>
                  <td class="number">{pass.accepted}</td>
                  <td class="number">{pass.rejected}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {bars.length > MOST_IN_TABLE && <p class="note">{T.timeline.omitted(bars.length - MOST_IN_TABLE)}</p>}
      </details>
    </div>
  );
}
