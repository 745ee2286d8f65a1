//! Curves of latency and bandwidth over size, as one SVG: a row of two panels for each collective.

use std::path::Path;

use anyhow::Context as _;
use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, LabelAreaPosition, SeriesLabelPosition};
use plotters::coord::Shift;
use plotters::coord::combinators::IntoLogRange as _;
use plotters::drawing::{DrawingArea, IntoDrawingArea as _};
use plotters::element::{Circle, PathElement};
use plotters::series::LineSeries;
use plotters::style::{BLACK, Color as _, RGBColor, WHITE};

use super::super::row::Row;

const PANEL: (u32, u32) = (560, 380);
const MARGIN: u32 = 12;

/// One curve of a panel.
#[derive(Clone, Debug, PartialEq)]
struct Curve {
    name: String,
    /// Bytes, and microseconds or GB/s.
    points: Vec<(f64, f64)>,
}

/// Writes the picture.
///
/// # Errors
/// The file cannot be written, or there is nothing to draw.
pub(crate) fn write(path: &Path, title: &str, rows: &[Row]) -> anyhow::Result<()> {
    let svg = draw(title, rows)?;
    std::fs::write(path, svg).with_context(|| format!("--plot: {} cannot be written", path.display()))
}

fn draw(title: &str, rows: &[Row]) -> anyhow::Result<String> {
    let mut ops: Vec<&str> = Vec::new();
    for row in rows {
        if !ops.contains(&row.op.as_str()) {
            ops.push(&row.op);
        }
    }
    let height = PANEL.1 * ops.len().max(1) as u32;
    let mut svg = String::new();
    {
        let all = SVGBackend::with_string(&mut svg, (2 * PANEL.0, height)).into_drawing_area();
        all.fill(&WHITE).context("the plot's background")?;
        let panels = all.split_evenly((ops.len().max(1), 2));
        for (op, pair) in ops.iter().zip(panels.chunks_exact(2)) {
            let of_op: Vec<&Row> = rows.iter().filter(|row| row.op == **op).collect();
            let latency = curves(&of_op, |_, microseconds| microseconds);
            panel(&pair[0], &format!("{op}: latency, {title}"), "time (us)", &latency)?;
            let bandwidth = curves(&of_op, bus_bandwidth);
            panel(&pair[1], &format!("{op}: bus bandwidth"), "GB/s", &bandwidth)?;
        }
        all.present().context("the plot")?;
    }
    Ok(svg)
}

/// The peer's bandwidth is counted with the factor of the row's own.
fn bus_bandwidth(row: &Row, microseconds: f64) -> f64 {
    row.gb_per_s * row.us_median / microseconds
}

/// This library's curve and each peer's. `value` makes the height of a point from a time.
fn curves(rows: &[&Row], value: impl Fn(&Row, f64) -> f64) -> Vec<Curve> {
    let peers = [("nccl_us", "NCCL"), ("nccl_sym_us", "NCCL, symmetric windows")];
    let points = |time: &dyn Fn(&Row) -> Option<f64>| -> Vec<(f64, f64)> {
        let point = |row: &&Row| Some((row.bytes? as f64, value(row, time(row)?)));
        // A logarithmic axis cannot show zero, which is a single rank's bandwidth.
        rows.iter().filter_map(point).filter(|(x, y)| *x > 0.0 && y.is_finite() && *y > 0.0).collect()
    };
    let ours = Curve { name: "anabranch".to_owned(), points: points(&|row| Some(row.us_median)) };
    let theirs = peers.iter().map(|(field, name)| Curve {
        name: (*name).to_owned(),
        points: points(&|row| row.extras.get(*field)?.as_f64()),
    });
    std::iter::once(ours).chain(theirs).filter(|curve| !curve.points.is_empty()).collect()
}

/// Colours that remain distinct with colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    caption: &str,
    unit: &str,
    curves: &[Curve],
) -> anyhow::Result<()> {
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (Some(sizes), Some(heights)) = (span(all().map(|point| point.0)), span(all().map(|point| point.1)))
    else {
        return Ok(());
    };
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 15))
        .margin(MARGIN)
        .set_label_area_size(LabelAreaPosition::Left, 58)
        .set_label_area_size(LabelAreaPosition::Bottom, 38)
        .build_cartesian_2d(
            (sizes.0..sizes.1).log_scale().base(2.0),
            (heights.0..heights.1).log_scale().base(2.0),
        )
        .context("the plot's axes")?;
    chart
        .configure_mesh()
        .light_line_style(BLACK.mix(0.06))
        .bold_line_style(BLACK.mix(0.15))
        .max_light_lines(1)
        .x_labels(10)
        .y_labels(8)
        .x_desc("size")
        .y_desc(unit)
        .x_label_formatter(&|bytes| size_text(*bytes))
        .y_label_formatter(&|height| height_text(*height))
        .draw()
        .context("the plot's mesh")?;
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        let line = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), line))
            .context("a curve")?
            .label(curve.name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], line));
        chart
            .draw_series(curve.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))
            .context("a curve's points")?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(BLACK.mix(0.3))
        .draw()
        .context("the plot's legend")?;
    Ok(())
}

/// The least and the greatest, with a margin on both sides.
fn span(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let (least, greatest) = values
        .fold((f64::INFINITY, 0.0f64), |(least, greatest), value| (least.min(value), greatest.max(value)));
    (least <= greatest).then_some((least / 1.3, greatest * 1.3))
}

/// A size as it is written: the largest unit that it has one of.
fn size_text(bytes: f64) -> String {
    let units = [("G", 1u64 << 30), ("M", 1 << 20), ("K", 1 << 10)];
    match units.iter().find(|(_, unit)| bytes >= *unit as f64) {
        Some((name, unit)) => format!("{}{name}", height_text(bytes / *unit as f64)),
        None => format!("{bytes:.0}"),
    }
}

/// Two digits that count, or all before the point.
fn height_text(height: f64) -> String {
    let digits = if height > 0.0 { (1.0 - height.log10().floor()).clamp(0.0, 9.0) as usize } else { 0 };
    let text = format!("{height:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(op: &str, bytes: u64, us: f64, nccl: Option<f64>) -> Row {
        let row = Row {
            op: op.into(),
            runtime: "host".into(),
            ranks: 4,
            dtype: "bf16".into(),
            tokens: None,
            bytes: Some(bytes),
            us_median: us,
            us_p99: us,
            gb_per_s: bytes as f64 / us / 1e3,
            link_fraction: None,
            verified: true,
            compiled: 0,
            extras: serde_json::Map::new(),
        };
        match nccl {
            Some(us) => row.with("nccl_us", us),
            None => row,
        }
    }

    #[test]
    fn each_collective_has_two_panels_with_a_curve_a_contender() {
        let rows = [
            row("all_reduce", 1024, 4.0, Some(14.0)),
            row("all_reduce", 1 << 20, 12.0, Some(23.0)),
            row("all_gather", 1024, 3.0, None),
        ];
        let svg = draw("4 ranks", &rows).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
        let count = |text: &str| svg.matches(text).count();
        assert_eq!((count("all_reduce:"), count("all_gather:")), (2, 2));
        // Two panels of two contenders, two of one.
        assert_eq!((count("anabranch"), count("NCCL")), (4, 2), "{svg}");
        assert_eq!(count("<circle"), 2 * 4 + 2);
        assert!(svg.contains(&format!("height=\"{}\"", 2 * PANEL.1)));
    }

    #[test]
    fn peer_bandwidth_uses_the_bus_factor() {
        let one = row("all_gather", 1_000_000, 10.0, Some(20.0));
        let found = curves(&[&one], bus_bandwidth);
        assert_eq!(found[0].points, [(1e6, 100.0)]);
        assert_eq!((found[1].name.as_str(), found[1].points.as_slice()), ("NCCL", &[(1e6, 50.0)][..]));
    }

    #[test]
    fn zero_bandwidth_of_one_rank_draws_nothing() {
        let mut one = row("all_reduce", 1024, 4.0, None);
        one.gb_per_s = 0.0;
        let svg = draw("1 rank", &[one]).unwrap();
        assert_eq!(svg.matches("<circle").count(), 1);
        assert!(draw("nothing", &[]).is_ok());
    }

    #[test]
    fn numbers_are_short() {
        let sizes = [8.0, 1024.0, 1536.0, 32768.0, (1u64 << 20) as f64, (1u64 << 30) as f64];
        assert_eq!(sizes.map(size_text), ["8", "1K", "1.5K", "32K", "1M", "1G"]);
        assert_eq!([0.0012, 0.25, 3.0, 4.26, 104.4].map(height_text), ["0.0012", "0.25", "3", "4.3", "104"]);
    }
}
