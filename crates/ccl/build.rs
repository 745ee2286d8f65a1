//! Lists the device headers.

fn main() -> std::io::Result<()> {
    anabranch_device_headers::write("device")
}
