// Draws a dashboard from query results of Prometheus (picture.py) with the components of Grafana.
import {
  applyFieldOverrides,
  createTheme,
  type DataFrame,
  dateTime,
  FieldColorModeId,
  FieldType,
  getDisplayProcessor,
  LoadingState,
  ThresholdsMode,
  ThemeContext,
  type TimeRange,
} from '@grafana/data';
import {
  BigValue,
  BigValueColorMode,
  BigValueGraphMode,
  BigValueJustifyMode,
  BigValueTextMode,
  GlobalStyles,
  LegendDisplayMode,
  PanelChrome,
  Table,
  TimeSeries,
} from '@grafana/ui';
import { createRoot } from 'react-dom/client';

type Series = { name: string; labels: Record<string, string>; times: number[]; values: Array<number | null> };
type Answered = { panel: any; series: Series[] };
declare const DASHBOARD: { title: string; from: number; to: number; note: string; panels: Answered[] };

const theme = createTheme({ colors: { mode: 'dark' } });
const WIDTH = 1680; // pixels; a grid row of Grafana is 30 high, with gaps of 8
const GAP = 8;
const ROW = 38;

const range: TimeRange = {
  from: dateTime(DASHBOARD.from),
  to: dateTime(DASHBOARD.to),
  raw: { from: dateTime(DASHBOARD.from), to: dateTime(DASHBOARD.to) },
};

function framesOf({ panel, series }: Answered): DataFrame[] {
  const defaults = panel.fieldConfig.defaults;
  // Grafana colours a stat by its threshold and a line by the palette.
  const color = { mode: panel.type === 'stat' ? FieldColorModeId.Thresholds : FieldColorModeId.PaletteClassic };
  const thresholds = defaults.thresholds && {
    mode: ThresholdsMode.Absolute,
    steps: defaults.thresholds.steps.map((s: any) => ({ ...s, value: s.value ?? -Infinity })),
  };
  const frames = series.map((one) => ({
    name: one.name,
    length: one.times.length,
    fields: [
      { name: 'Time', type: FieldType.time, config: {}, values: one.times },
      {
        name: 'Value',
        type: FieldType.number,
        labels: one.labels,
        values: one.values,
        config: { ...defaults, thresholds, color, displayNameFromDS: one.name, custom: { lineWidth: 1, fillOpacity: 0 } },
      },
    ],
  }));
  return applyFieldOverrides({
    data: frames,
    fieldConfig: { defaults: {}, overrides: [] },
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
}

function Stat({ answered, width, height }: { answered: Answered; width: number; height: number }) {
  const [frame] = framesOf(answered);
  if (!frame) {
    return <NoData />;
  }
  const [x, y] = frame.fields;
  const last = y.values.filter((value) => value !== null).at(-1);
  return (
    <BigValue
      theme={theme}
      width={width}
      height={height}
      value={(y.display ?? getDisplayProcessor({ field: y, theme }))(last)}
      sparkline={{ x, y, timeRange: range }}
      colorMode={BigValueColorMode.Value}
      graphMode={BigValueGraphMode.Area}
      justifyMode={BigValueJustifyMode.Auto}
      textMode={BigValueTextMode.Value}
    />
  );
}

function Rows({ answered, width, height }: { answered: Answered; width: number; height: number }) {
  const names = ['Time', ...Object.keys(answered.series[0]?.labels ?? {}), 'Value'];
  const cell = (one: Series, name: string) =>
    name === 'Time' ? one.times.at(-1) : name === 'Value' ? one.values.at(-1) : one.labels[name];
  const fields = names.map((name) => ({
    name,
    type: name === 'Time' ? FieldType.time : name === 'Value' ? FieldType.number : FieldType.string,
    config: { custom: {} },
    values: answered.series.map((one) => cell(one, name)),
  }));
  const [frame] = applyFieldOverrides({
    data: [{ length: answered.series.length, fields } as DataFrame],
    fieldConfig: { defaults: {}, overrides: [] },
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
  return <Table data={frame} width={width} height={height} />;
}

function NoData() {
  return <div style={{ display: 'grid', placeItems: 'center', height: '100%', opacity: 0.7 }}>No data</div>;
}

function Inside({ answered, width, height }: { answered: Answered; width: number; height: number }) {
  if (answered.series.length === 0) {
    return <NoData />;
  }
  if (answered.panel.type === 'stat') {
    return <Stat answered={answered} width={width} height={height} />;
  }
  if (answered.panel.type === 'table') {
    return <Rows answered={answered} width={width} height={height} />;
  }
  return (
    <TimeSeries
      frames={framesOf(answered)}
      timeRange={range}
      timeZone="utc"
      width={width}
      height={height}
      legend={{ displayMode: LegendDisplayMode.List, placement: 'bottom', showLegend: true, calcs: [] }}
    />
  );
}

function Placed({ answered }: { answered: Answered }) {
  const { panel } = answered;
  const { x, y, w, h } = panel.gridPos;
  const unit = WIDTH / 24;
  const style = {
    position: 'absolute' as const,
    left: x * unit + GAP / 2,
    top: y * ROW + 48,
    width: w * unit - GAP,
    height: h * ROW - GAP,
  };
  if (panel.type === 'row') {
    return <div style={{ ...style, height: 30, fontSize: 16, paddingTop: 8 }}>{panel.title}</div>;
  }
  return (
    <div style={style}>
      <PanelChrome width={style.width} height={style.height} title={panel.title} loadingState={LoadingState.Done}>
        {(width, height) => <Inside answered={answered} width={width} height={height} />}
      </PanelChrome>
    </div>
  );
}

function Dashboard() {
  return (
    <div style={{ position: 'relative', width: WIDTH }}>
      <div style={{ padding: 10, fontSize: 18 }}>
        {DASHBOARD.title} <span style={{ fontSize: 13, opacity: 0.7 }}>{DASHBOARD.note}</span>
      </div>
      {DASHBOARD.panels.map((answered) => (
        <Placed key={answered.panel.id} answered={answered} />
      ))}
    </div>
  );
}

document.body.style.cssText =
  `margin:0;background:${theme.colors.background.canvas};color:${theme.colors.text.primary};` +
  `font-family:${theme.typography.fontFamily};font-size:14px;line-height:1.57;box-sizing:border-box`;
createRoot(document.getElementById('page')!).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Dashboard />
  </ThemeContext.Provider>,
);
