//! A report as a picture: a line for each row from its median to its 99.9th percentile on a logarithmic scale, and the limit of the same
//! run as a cross beside it.

use std::path::Path;

use plotters::prelude::*;

use super::report::{Report, Row};
use crate::exit::Failure;

/// Pixels for each row, and for what stands around the rows.
const ROW_HEIGHT: u32 = 24;
const FRAME_HEIGHT: u32 = 110;
const WIDTH: u32 = 1000;

/// Writes the report as an SVG file.
///
/// # Errors
/// A file that can't be written.
pub fn write_svg(report: &Report, path: &Path) -> Result<(), Failure> {
    let failure = |error: String| Failure::File {
        path: path.display().to_string(),
        source: std::io::Error::other(error),
    };
    // plotters reports a file that can't be created only as text; asking first gives the system's own error.
    std::fs::write(path, "").map_err(|source| Failure::File { path: path.display().to_string(), source })?;
    draw(report, path).map_err(|error| failure(error.to_string()))
}

fn draw(report: &Report, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let rows = &report.results;
    let height = FRAME_HEIGHT + ROW_HEIGHT * rows.len() as u32;
    let area = SVGBackend::new(path, (WIDTH, height)).into_drawing_area();
    area.fill(&WHITE)?;
    let (least, most) = extent(rows);
    let mut chart = ChartBuilder::on(&area)
        .caption(caption(report), ("sans-serif", 18))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(36)
        .y_label_area_size(300)
        .build_cartesian_2d((least..most).log_scale(), -0.5..rows.len() as f64 - 0.5)?;
    // The first row stands on top.
    let label = |y: &f64| {
        let index = rows.len() as f64 - 1.0 - y.round();
        rows.get(index as usize).filter(|_| (y - y.round()).abs() < 0.01).map_or(String::new(), Row::label)
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(rows.len() * 2)
        .y_label_formatter(&label)
        .x_label_formatter(&|us| format!("{us}"))
        .x_desc(report.environment.line())
        .axis_desc_style(("sans-serif", 12))
        .draw()?;
    for (index, row) in rows.iter().enumerate() {
        let y = (rows.len() - 1 - index) as f64;
        let latency = row.latency;
        chart.draw_series(LineSeries::new([(latency.p50, y), (latency.p999, y)], BLUE.stroke_width(2)))?;
        chart.draw_series(
            [latency.p50, latency.p99, latency.p999].map(|us| Circle::new((us, y), 3, BLUE.filled())),
        )?;
        chart.draw_series(row.floor.map(|floor| Cross::new((floor.p50, y), 5, RED.stroke_width(2))))?;
    }
    area.present()?;
    Ok(())
}

fn caption(report: &Report) -> String {
    let has_floor = report.results.iter().any(|row| row.floor.is_some());
    let cross = if has_floor { "; cross: p50 of the limit" } else { "" };
    let per_token = report.results.iter().all(|row| row.unit == "us_per_token") && !report.results.is_empty();
    let unit = if per_token { "us per token" } else { "us" };
    format!("lanner bench {}: p50, p99, p99.9 in {unit}{cross}", report.benchmark)
}

/// The ends of the scale: whole powers of ten around everything that is drawn.
fn extent(rows: &[Row]) -> (f64, f64) {
    let drawn = rows.iter().flat_map(|row| {
        let floor = row.floor.map_or(row.latency.p50, |floor| floor.p50);
        [floor, row.latency.p50, row.latency.p999]
    });
    let (least, most) = drawn.fold((f64::MAX, f64::MIN), |(least, most), us| (us.min(least), us.max(most)));
    if rows.is_empty() {
        return (1.0, 10.0);
    }
    let (below, above) = (least.max(1e-3).log10().floor(), most.max(1e-3).log10().ceil());
    (10f64.powf(below), 10f64.powf(above.max(below + 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::environment::Environment;
    use crate::bench::histogram::Summary;

    fn row(p50: f64) -> Row {
        let latency = Summary { p25: p50, p50, p95: p50, p99: p50 * 2.0, p999: p50 * 3.0, max: p50 * 4.0 };
        Row {
            varied: vec![("limit", "gather".into())],
            iterations: 1,
            verified_bytes: 0,
            errors: 0,
            unit: "latency_us",
            latency,
            floor: Some(latency),
            operations_per_second: None,
        }
    }

    /// Shows that a picture is written with a label for each row, and that it fits one row and none.
    #[test]
    fn every_row_is_drawn_under_its_label() {
        let path = std::env::temp_dir().join(format!("lanner-plot-{}.svg", std::process::id()));
        for rows in 0..4 {
            let results = (0..rows).map(|index| row(0.3 * 10f64.powi(index))).collect();
            let report = Report {
                benchmark: "floor",
                environment: Environment::gather(),
                results,
                history: Vec::new(),
            };
            write_svg(&report, &path).expect("drawn");
            let svg = std::fs::read_to_string(&path).expect("written");
            assert_eq!(svg.matches("\ngather\n").count(), rows as usize, "{svg}");
        }
        std::fs::remove_file(&path).expect("removed");
    }

    /// Shows that the scale is made of whole powers of ten around what is drawn.
    #[test]
    fn the_scale_ends_in_powers_of_ten() {
        let close =
            |(a, b): (f64, f64), (c, d): (f64, f64)| (a / c - 1.0).abs() < 1e-9 && (b / d - 1.0).abs() < 1e-9;
        assert!(close(extent(&[row(0.3), row(50.0)]), (0.1, 1000.0)));
        assert!(close(extent(&[row(2.0)]), (1.0, 10.0)));
    }

    /// Shows that a folder that isn't there is wrong use, named with its path.
    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let report = Report {
            benchmark: "floor",
            environment: Environment::gather(),
            results: Vec::new(),
            history: Vec::new(),
        };
        let failure = write_svg(&report, Path::new("/no/such/folder/x.svg")).expect_err("no such folder");
        assert!(failure.to_string().contains("/no/such/folder/x.svg"), "{failure}");
    }
}
