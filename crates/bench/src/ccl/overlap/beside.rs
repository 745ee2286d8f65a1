//! Times a product and a collective, each alone and both concurrently.
//!
//! Each is captured into graphs of several repetitions, so that launching takes no part in it; collectives may be launched one by one
//! instead, as what a stream does by itself cannot be captured. Of the two that run at once one is measured
//! and the other *covers* it: it has work for about twice as long, begins first, and is there until the measured one has ended.

use std::cell::RefCell;

use anabranch::{Error, World};
use anabranch_hip::{GraphExec, Stream};
use anabranch_shmem::Team;
use anyhow::Context as _;

use super::super::super::device::{self, Stamps};
use super::super::super::link;
use super::super::contender::Contender;
use super::product::Product;

/// How long what is measured runs, about; microseconds.
const MEASURED_US: f64 = 5_000.0;
/// The last stamp of launches that need no compute unit waits for one, up to the length of a product.
const MEASURED_EAGER_US: f64 = 20_000.0;
const MEASURED_ON_HOST_US: f64 = 500.0;
/// What covers has work for so many times the time of what is measured, and for twice as long again while that is not enough.
const COVERS: f64 = 2.0;
/// The share of the measured time that is enough.
const ENOUGH: f64 = 0.95;
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
    stamps: [RefCell<Stamps>; 2],
    is_host: bool,
    /// Collectives are launched one by one.
    is_eager: bool,
}

/// A launch of a contender.
type Launch<'c> = RefCell<Box<dyn FnMut(&Stream) -> anyhow::Result<()> + 'c>>;

/// What runs on a sample.
enum Body<'a, 'c> {
    Graph(GraphExec),
    /// So many launches of the contender.
    Launches(&'a Launch<'c>, &'a RefCell<Stamps>),
}

/// Something that runs: repetitions.
struct Repeated<'a, 'c> {
    body: Body<'a, 'c>,
    count: u32,
    is_product: bool,
}

impl Repeated<'_, '_> {
    fn run(&self, stream: &Stream) -> anyhow::Result<()> {
        match &self.body {
            Body::Graph(graph) => Ok(device::replay(graph, stream)?),
            Body::Launches(launch, stamps) => {
                stamped(stream, &stamps.borrow(), self.count, |stream| launch.borrow_mut()(stream))
            }
        }
    }

    /// Microseconds of one repetition.
    fn each(&self, interval: Interval) -> f64 {
        interval.microseconds() / f64::from(self.count)
    }
}

struct Both<'a, 'c> {
    product: Repeated<'a, 'c>,
    collective: Repeated<'a, 'c>,
}

impl<'w> Beside<'w> {
    /// Collective over the world.
    ///
    /// # Errors
    /// The runtime's; what made the world fail.
    pub(super) fn new(world: &'w World, is_host: bool, is_eager: bool) -> Result<Self, Error> {
        let device = world.device();
        Ok(Self {
            world,
            team: world.team(world.group())?,
            products: device.create_stream()?,
            collectives: device.create_priority_stream()?,
            stamps: [RefCell::new(Stamps::new(world, 4)?), RefCell::new(Stamps::new(world, 4)?)],
            is_host,
            is_eager,
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
        Ok(self.world.synchronize_within(&self.products, link::patience(self.world)).map_err(Error::from)?)
    }

    /// Measures a prepared contender concurrently with the product. Collective over the world.
    ///
    /// # Errors
    /// The contender's and the product's; what made the world fail.
    pub(super) fn measure(
        &self,
        product: &Product,
        contender: &mut dyn Contender,
        samples: u32,
    ) -> anyhow::Result<Times> {
        let launch: Launch<'_> = RefCell::new(Box::new(|stream| contender.enqueue(stream)));
        let one = Both { product: self.products(product, 1)?, collective: self.repeated(&launch, 1)? };
        let (product_us, collective_us) = (self.about(&one, true)?, self.about(&one, false)?);
        let whole = match (self.is_host, self.is_eager) {
            (true, _) => MEASURED_ON_HOST_US,
            (false, false) => MEASURED_US,
            (false, true) => MEASURED_EAGER_US,
        };
        let times_of = |all: f64, one: f64| (all / one.max(0.1)).ceil().clamp(1.0, f64::from(MOST)) as u32;
        let (products, collectives) = (times_of(whole, product_us), times_of(whole, collective_us));
        let measured = Both {
            product: self.products(product, products)?,
            collective: self.repeated(&launch, collectives)?,
        };
        let mut of_products = times_of(COVERS * product_us * f64::from(products), collective_us);
        let mut of_collectives = times_of(COVERS * collective_us * f64::from(collectives), product_us);
        let mut cover = Both {
            product: self.products(product, of_collectives)?,
            collective: self.repeated(&launch, of_products)?,
        };
        // What is slowed much lasts longer than it was thought to.
        while !self.is_covered(&measured.product, &one.collective, &cover.collective)? && of_products < MOST {
            of_products = (2 * of_products).min(MOST);
            cover.collective = self.repeated(&launch, of_products)?;
        }
        while !self.is_covered(&measured.collective, &one.product, &cover.product)? && of_collectives < MOST {
            of_collectives = (2 * of_collectives).min(MOST);
            cover.product = self.products(product, of_collectives)?;
        }
        let mut times = Times { covered: 1.0, ..Times::default() };
        for sample in 0..WARM + samples {
            let alone = [self.alone(&measured.product)?, self.alone(&measured.collective)?];
            let (product, of_product) =
                self.sample(&measured.product, Some((&one.collective, &cover.collective)))?;
            let (collective, of_collective) =
                self.sample(&measured.collective, Some((&one.product, &cover.product)))?;
            if sample < WARM {
                continue;
            }
            times.product_alone.push(measured.product.each(alone[0]));
            times.collective_alone.push(measured.collective.each(alone[1]));
            times.product_beside.push(measured.product.each(product));
            times.collective_beside.push(measured.collective.each(collective));
            times.covered = times.covered.min(of_product).min(of_collective);
        }
        Ok(times)
    }

    /// Whether the cover was there for as good as all of what is measured, on all ranks.
    fn is_covered(
        &self,
        measured: &Repeated<'_, '_>,
        one: &Repeated<'_, '_>,
        cover: &Repeated<'_, '_>,
    ) -> anyhow::Result<bool> {
        let (_, share) = self.sample(measured, Some((one, cover)))?;
        Ok(link::all_agree(self.world, self.world.group(), "overlap cover", share > ENOUGH)?)
    }

    fn products(&self, product: &Product, count: u32) -> anyhow::Result<Repeated<'_, '_>> {
        let graph =
            capture(&self.products, &self.stamps[0].borrow(), count, |stream| product.enqueue(stream))?;
        Ok(Repeated { body: Body::Graph(graph), count, is_product: true })
    }

    fn repeated<'a, 'c>(&'a self, launch: &'a Launch<'c>, count: u32) -> anyhow::Result<Repeated<'a, 'c>> {
        let stamps = &self.stamps[1];
        let body = if self.is_eager {
            Body::Launches(launch, stamps)
        } else {
            let enqueue = |stream: &Stream| launch.borrow_mut()(stream);
            Body::Graph(capture(&self.collectives, &stamps.borrow(), count, enqueue)?)
        };
        Ok(Repeated { body, count, is_product: false })
    }

    fn alone(&self, measured: &Repeated<'_, '_>) -> anyhow::Result<Interval> {
        Ok(self.sample(measured, None)?.0)
    }

    /// About how long one takes on the slowest rank: equal on all ranks, which choose counts by it.
    fn about(&self, one: &Both<'_, '_>, is_product: bool) -> anyhow::Result<f64> {
        let one = if is_product { &one.product } else { &one.collective };
        let mut last = 0.0;
        for _ in 0..3 {
            last = self.alone(one)?.microseconds();
        }
        let all = link::gather(self.world, self.world.group(), "overlap estimate", &[last])?;
        Ok(all.into_iter().flatten().fold(0.1, f64::max))
    }

    /// Runs something on all ranks, which begin together, and waits: when it ran. With a cover (one repetition of it, and many), it
    /// begins when that one is done; also returns the share of its time in which the cover was running.
    fn sample(
        &self,
        measured: &Repeated<'_, '_>,
        cover: Option<(&Repeated<'_, '_>, &Repeated<'_, '_>)>,
    ) -> anyhow::Result<(Interval, f64)> {
        let device = self.world.device();
        let event = || device.create_event().map_err(Error::from);
        let (begun, running) = (event()?, event()?);
        self.team.barrier(&self.products).map_err(Error::from)?;
        self.products.record(&begun).map_err(Error::from)?;
        self.collectives.wait_event(&begun).map_err(Error::from)?;
        let [own, other] = if measured.is_product {
            [&self.products, &self.collectives]
        } else {
            [&self.collectives, &self.products]
        };
        if let Some((one, many)) = cover {
            one.run(other)?;
            other.record(&running).map_err(Error::from)?;
            own.wait_event(&running).map_err(Error::from)?;
            many.run(other)?;
        }
        measured.run(own)?;
        for stream in [own, other] {
            self.world.synchronize_within(stream, link::patience(self.world)).map_err(Error::from)?;
        }
        let [of_products, of_collectives] = &self.stamps;
        let read = |stamps: &RefCell<Stamps>| anyhow::Ok(interval(&stamps.borrow_mut().read()?));
        let (products, collectives) = (read(of_products)?, read(of_collectives)?);
        let (own, other) =
            if measured.is_product { (products, collectives) } else { (collectives, products) };
        let own = own.context("no time was taken")?;
        Ok((own, other.map_or(0.0, |other| own.share_beside(other))))
    }
}

/// From the first stamp to the last.
fn interval(stamps: &[u64]) -> Option<Interval> {
    stamps.first().zip(stamps.last()).map(|(start, end)| Interval { start: *start, end: *end })
}

fn capture(
    stream: &Stream,
    stamps: &Stamps,
    count: u32,
    enqueue: impl FnMut(&Stream) -> anyhow::Result<()>,
) -> anyhow::Result<GraphExec> {
    stream.begin_capture().map_err(Error::from)?;
    let captured = stamped(stream, stamps, count, enqueue);
    // Ended whatever happened: a stream must not stay in capture.
    let graph = stream.end_capture();
    captured?;
    Ok(graph.map_err(Error::from)?.instantiate().map_err(Error::from)?)
}

/// Repetitions between two stamps.
fn stamped(
    stream: &Stream,
    stamps: &Stamps,
    count: u32,
    mut enqueue: impl FnMut(&Stream) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    stamps.take(stream)?;
    (0..count).try_for_each(|_| enqueue(stream))?;
    Ok(stamps.take(stream)?)
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
