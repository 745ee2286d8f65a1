//! Timing a product and a collective alone and beside each other.
//!
//! Each is captured into graphs of several repetitions, so that launching takes no part in it. Of the two that run at once one is measured
//! and the other *covers* it: it has work for about twice as long, begins first, and is there until the measured one has ended.

use anabranch::hip::{GraphExec, Stream};
use anabranch::shmem::Team;
use anabranch::{Error, World};

use super::super::super::device::{self, Stamps};
use super::super::super::link;
use super::super::contender::Contender;
use super::product::Product;

/// How long what is measured runs, about; microseconds.
const MEASURED_US: f64 = 5_000.0;
const MEASURED_ON_HOST_US: f64 = 500.0;
/// What covers has work for so many times the time of what is measured.
const COVERS: f64 = 2.0;
/// The most repetitions in a graph.
const MOST: u32 = 400;
/// Samples before the first that counts.
const WARM: u32 = 2;

/// When something ran, by the device's clock, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    start: u64,
    end: u64,
}

impl Interval {
    fn microseconds(self) -> f64 {
        self.end.saturating_sub(self.start) as f64 / 1e3
    }

    /// The share of it during which the other was there too.
    fn share_beside(self, other: Self) -> f64 {
        let common = self.end.min(other.end).saturating_sub(self.start.max(other.start));
        let whole = self.end.saturating_sub(self.start);
        if whole == 0 { 0.0 } else { common as f64 / whole as f64 }
    }
}

/// Times of one contender on one rank, microseconds of one product or one collective; by sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) product_alone: Vec<f64>,
    pub(super) collective_alone: Vec<f64>,
    pub(super) product_beside: Vec<f64>,
    pub(super) collective_beside: Vec<f64>,
    /// The share of each measured interval in which the other ran, the least of all samples.
    pub(super) covered: f64,
}

/// The two streams of a rank and their clocks.
#[derive(Debug)]
pub(super) struct Beside<'w> {
    world: &'w World,
    team: Team,
    products: Stream,
    /// Of the greatest priority, as frameworks' streams for communication may be.
    collectives: Stream,
    stamps: [Stamps; 2],
    is_host: bool,
}

/// Something that runs: repetitions in a graph.
struct Repeated {
    graph: GraphExec,
    count: u32,
}

impl<'w> Beside<'w> {
    /// Collective over the world.
    ///
    /// # Errors
    /// The runtime's; what made the world fail.
    pub(super) fn new(world: &'w World, is_host: bool) -> Result<Self, Error> {
        let device = world.device();
        Ok(Self {
            world,
            team: world.team(world.group())?,
            products: device.create_stream()?,
            collectives: device.create_priority_stream()?,
            stamps: [Stamps::new(world, 2)?, Stamps::new(world, 2)?],
            is_host,
        })
    }

    /// The stream of collectives.
    pub(super) fn collectives(&self) -> &Stream {
        &self.collectives
    }

    /// Runs one product and waits for it.
    ///
    /// # Errors
    /// The product's; what made the world fail.
    pub(super) fn run(&self, product: &Product) -> anyhow::Result<()> {
        product.enqueue(&self.products)?;
        Ok(self.world.synchronize_within(&self.products, link::PATIENCE).map_err(Error::from)?)
    }

    /// Measures a prepared contender beside the product. Collective over the world.
    ///
    /// # Errors
    /// The contender's and the product's; what made the world fail.
    pub(super) fn measure(
        &mut self,
        product: &Product,
        contender: &mut dyn Contender,
        samples: u32,
    ) -> anyhow::Result<Times> {
        let one_product = self.products(product, 1)?;
        let one_collective = self.repeated(contender, 1)?;
        let (product_us, collective_us) =
            (self.about(&one_product, true)?, self.about(&one_collective, false)?);
        let whole = if self.is_host { MEASURED_ON_HOST_US } else { MEASURED_US };
        let times_of = |all: f64, one: f64| (all / one.max(0.1)).ceil().clamp(1.0, f64::from(MOST)) as u32;
        let (products, collectives) = (times_of(whole, product_us), times_of(whole, collective_us));
        let cover_products = times_of(COVERS * product_us * f64::from(products), collective_us);
        let cover_collectives = times_of(COVERS * collective_us * f64::from(collectives), product_us);
        let (products, long_products) =
            (self.products(product, products)?, self.products(product, cover_collectives)?);
        let (collectives, long_collectives) =
            (self.repeated(contender, collectives)?, self.repeated(contender, cover_products)?);
        let mut times = Times { covered: 1.0, ..Times::default() };
        for sample in 0..WARM + samples {
            let (alone, _) = self.sample(Some(&products), None, true)?;
            let (_, alone_too) = self.sample(None, Some(&collectives), true)?;
            let (product, cover) = self.sample(Some(&products), Some(&long_collectives), false)?;
            let (cover_too, collective) = self.sample(Some(&long_products), Some(&collectives), true)?;
            if sample < WARM {
                continue;
            }
            let each = |interval: Option<Interval>, of: &Repeated| {
                interval.map(|interval| interval.microseconds() / f64::from(of.count))
            };
            times.product_alone.extend(each(alone, &products));
            times.collective_alone.extend(each(alone_too, &collectives));
            times.product_beside.extend(each(product, &products));
            times.collective_beside.extend(each(collective, &collectives));
            for (measured, cover) in [(product, cover), (collective, cover_too)] {
                let share = measured.zip(cover).map_or(0.0, |(measured, cover)| measured.share_beside(cover));
                times.covered = times.covered.min(share);
            }
        }
        Ok(times)
    }

    fn products(&self, product: &Product, count: u32) -> anyhow::Result<Repeated> {
        let graph = capture(&self.products, &self.stamps[0], count, |stream| product.enqueue(stream))?;
        Ok(Repeated { graph, count })
    }

    fn repeated(&self, contender: &mut dyn Contender, count: u32) -> anyhow::Result<Repeated> {
        let graph = capture(&self.collectives, &self.stamps[1], count, |stream| contender.enqueue(stream))?;
        Ok(Repeated { graph, count })
    }

    /// About how long one takes on the slowest rank: equal on all ranks, which choose counts by it.
    fn about(&mut self, one: &Repeated, is_product: bool) -> anyhow::Result<f64> {
        let mut last = 0.0;
        for _ in 0..3 {
            let (product, collective) = match is_product {
                true => self.sample(Some(one), None, true)?,
                false => self.sample(None, Some(one), true)?,
            };
            last = product.or(collective).map_or(0.0, Interval::microseconds);
        }
        let all = link::gather(self.world, "overlap estimate", &[last])?;
        Ok(all.into_iter().flatten().fold(0.1, f64::max))
    }

    /// Runs one or both at once on all ranks, which begin together, and waits.
    fn sample(
        &mut self,
        product: Option<&Repeated>,
        collective: Option<&Repeated>,
        product_first: bool,
    ) -> anyhow::Result<(Option<Interval>, Option<Interval>)> {
        let begun = self.world.device().create_event().map_err(Error::from)?;
        self.team.barrier(&self.products).map_err(Error::from)?;
        self.products.record(&begun).map_err(Error::from)?;
        self.collectives.wait_event(&begun).map_err(Error::from)?;
        let product = product.map(|product| (&product.graph, &self.products));
        let collective = collective.map(|collective| (&collective.graph, &self.collectives));
        let order = if product_first { [product, collective] } else { [collective, product] };
        for (graph, stream) in order.into_iter().flatten() {
            device::replay(graph, stream)?;
        }
        for stream in [&self.products, &self.collectives] {
            self.world.synchronize_within(stream, link::PATIENCE).map_err(Error::from)?;
        }
        let [of_products, of_collectives] = &mut self.stamps;
        Ok((interval(&of_products.read()?), interval(&of_collectives.read()?)))
    }
}

fn interval(stamps: &[u64]) -> Option<Interval> {
    stamps.first().zip(stamps.get(1)).map(|(start, end)| Interval { start: *start, end: *end })
}

fn capture(
    stream: &Stream,
    stamps: &Stamps,
    count: u32,
    mut enqueue: impl FnMut(&Stream) -> anyhow::Result<()>,
) -> anyhow::Result<GraphExec> {
    stream.begin_capture().map_err(Error::from)?;
    let captured = (|| {
        stamps.take(stream)?;
        (0..count).try_for_each(|_| enqueue(stream))?;
        anyhow::Ok(stamps.take(stream)?)
    })();
    // Ended whatever happened: a stream must not stay in capture.
    let graph = stream.end_capture();
    captured?;
    Ok(graph.map_err(Error::from)?.instantiate().map_err(Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_beside_is_that_of_the_measured_interval() {
        let of = |start, end| Interval { start, end };
        let measured = of(100, 200);
        for (cover, share) in [
            (of(0, 300), 1.0),
            (of(150, 300), 0.5),
            (of(0, 125), 0.25),
            (of(120, 140), 0.2),
            (of(300, 400), 0.0),
        ] {
            assert!((measured.share_beside(cover) - share).abs() < 1e-12, "{cover:?}");
        }
        assert!(of(5, 5).share_beside(measured).abs() < 1e-12);
        assert!((of(1000, 3500).microseconds() - 2.5).abs() < 1e-12);
    }
}
