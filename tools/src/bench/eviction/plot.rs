//! A comparison as a picture: a line for each order of eviction over the capacities, on a logarithmic scale.

use std::path::Path;

use plotters::prelude::*;

use super::Order;
use super::report::EvictionReport;
use crate::exit::Failure;

const SIZE: (u32, u32) = (1000, 560);

/// Writes the report as an SVG file.
///
/// # Errors
/// A file that can't be written.
pub fn write_svg(report: &EvictionReport, path: &Path) -> Result<(), Failure> {
    let failure = |source| Failure::File { path: path.display().to_string(), source };
    // plotters reports a file that can't be created only as text; asking first gives the system's own error.
    std::fs::write(path, "").map_err(failure)?;
    draw(report, path).map_err(|error| failure(std::io::Error::other(error.to_string())))
}

fn draw(report: &EvictionReport, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let capacities = report.capacities();
    let least = capacities.iter().copied().min().unwrap_or(1) as f64;
    let most = capacities.iter().copied().max().unwrap_or(1) as f64;
    let highest = report.results.iter().map(|row| row.hit_ratio()).fold(0.01, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("leading blocks hit: {}", report.trace.file), ("sans-serif", 18))
        .margin(12)
        .margin_right(36)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d((least / 1.1..most * 1.1).log_scale(), 0.0..highest * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("blocks that fit")
        .x_label_formatter(&|blocks| format!("{blocks:.0}"))
        .y_desc("part of all uses")
        .draw()?;
    for policy in report.policies() {
        let rows = report.results.iter().filter(|row| row.policy == policy);
        let points: Vec<(f64, f64)> = rows.map(|row| (row.capacity as f64, row.hit_ratio())).collect();
        let colour = colour(policy);
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?
            .label(policy.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
        chart.draw_series(points.into_iter().map(|point| Circle::new(point, 3, colour.filled())))?;
    }
    chart.configure_series_labels().position(SeriesLabelPosition::LowerRight).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

fn colour(policy: Order) -> RGBColor {
    match policy {
        Order::Lru => RGBColor(120, 120, 120),
        Order::S3Fifo => RGBColor(214, 137, 16),
        Order::Adaptive => BLUE,
        Order::Belady => RGBColor(30, 132, 73),
    }
}
