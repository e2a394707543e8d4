//! Publishes pictures of cameras, files and streams, for `topic pub --ffmpeg` and `--v4l2`.
//!
//! The program `ffmpeg` opens and decodes the input, and writes each picture to a pipe in the format PPM: a line with width and
//! height, then the pixels. This module reads the pixels into a loan, so the pipe is the only copy.

use super::interruptible::Interruptible;
use crate::args::Publish;
use crate::exit::Usage;
use crate::stop::Stop;
use anyhow::{bail, Context};
use rgaps::{tensor, DType, Domain, Header, Loan, Publisher, Tensor};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

const PROGRAM: &str = "ffmpeg";
/// The name of this pixel format in Foxglove and ROS 2.
pub const ENCODING: &str = "rgb8";
const CHANNELS: u64 = 3;
/// Most bytes of a line in a picture's head, which has at most three numbers.
const LINE_BYTES_MAX: u64 = 64;
/// Bytes that one step copies to a GPU.
const CHUNK_BYTES: usize = 1 << 20;

/// A running ffmpeg.
pub struct Video {
    child: Child,
    pipe: BufReader<Interruptible<ChildStdout>>,
    name: String,
    stop: Stop,
    next: Option<Picture>,
}

/// The head of a picture whose pixels are still in the pipe.
#[derive(Clone, Copy)]
pub struct Picture {
    pub tensor: Tensor,
    bytes: u64,
    /// When this process read the head: nanoseconds since 1970.
    pub capture_ns: Option<u64>,
}

impl Drop for Video {
    fn drop(&mut self) {
        // ffmpeg has ended by itself, or its remaining pictures are not needed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Video {
    /// Starts ffmpeg and waits for its first picture. None: the command does not publish a video.
    pub fn open(publish: &Publish, stop: &Stop) -> anyhow::Result<Option<Video>> {
        let source = &publish.source;
        let (input, is_camera) = match (&source.ffmpeg, &source.v4l2) {
            (Some(input), _) => (input, false),
            (None, Some(device)) => (device, true),
            (None, None) if publish.ffmpeg_option.is_empty() => return Ok(None),
            (None, None) => {
                let text = "--ffmpeg-option needs --ffmpeg or --v4l2";
                return Err(Usage(text.to_owned()).into());
            }
        };
        let mut command = Command::new(PROGRAM);
        command.args(arguments(input, is_camera, &publish.ffmpeg_option));
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => anyhow::anyhow!(
                "there is no program 'ffmpeg', which reads videos and cameras: install it (Debian, Ubuntu: sudo apt install ffmpeg)"
            ),
            _ => anyhow::Error::new(error).context("starting ffmpeg failed"),
        })?;
        let input_pipe = child.stdout.take().context("ffmpeg has no output")?;
        let pipe = Interruptible {
            input: input_pipe,
            stop: stop.clone(),
        };
        let mut video = Video {
            child,
            pipe: BufReader::new(pipe),
            name: input.to_string_lossy().into_owned(),
            stop: stop.clone(),
            next: None,
        };
        match video.head()? {
            Some(first) => video.next = Some(first),
            None if stop.is_set() => bail!("interrupted before the first picture"),
            None => bail!(
                "ffmpeg found no picture in '{}': its message is above",
                video.name
            ),
        }
        Ok(Some(video))
    }

    /// The head of the next picture. None: the video has ended.
    pub fn next(&mut self) -> anyhow::Result<Option<Picture>> {
        if self.next.is_none() {
            self.next = self.head()?;
        }
        Ok(self.next)
    }

    /// Reads the pixels of the next picture into a loan. None: a signal has stopped the command.
    pub fn take(
        &mut self,
        picture: &Picture,
        publisher: &Publisher,
    ) -> anyhow::Result<Option<Loan>> {
        self.next = None;
        let mut loan = publisher.loan(picture.bytes)?;
        let read = match publisher.domain() {
            Domain::Host => self.pipe.read_exact(loan.as_mut_slice()?),
            Domain::Cuda(_) => self.copy_into(&mut loan)?,
        };
        match read {
            Ok(()) => Ok(Some(loan)),
            Err(_) if self.stop.is_set() => Ok(None),
            Err(error) => Err(error)
                .with_context(|| format!("ffmpeg ended within a picture of '{}'", self.name)),
        }
    }

    fn copy_into(&mut self, loan: &mut Loan) -> anyhow::Result<io::Result<()>> {
        let (mut at, end) = (0, loan.len());
        let mut chunk = vec![0; CHUNK_BYTES];
        while at < end {
            let length = CHUNK_BYTES.min((end - at) as usize);
            if let Err(error) = self.pipe.read_exact(&mut chunk[..length]) {
                return Ok(Err(error));
            }
            loan.write(at, &chunk[..length])?;
            at += length as u64;
        }
        Ok(Ok(()))
    }

    /// Reads the head of a picture. None: the video has ended, or a signal has stopped the command.
    fn head(&mut self) -> anyhow::Result<Option<Picture>> {
        let Some(magic) = self.line()? else {
            // The signal ended the read, or ffmpeg itself: Ctrl-C in a terminal reaches ffmpeg, too.
            if self.stop.is_set() {
                return Ok(None);
            }
            let status = self.child.wait().context("waiting for ffmpeg failed")?;
            if !status.success() {
                bail!("ffmpeg ended with {status} while it read '{}'", self.name);
            }
            return Ok(None);
        };
        let capture_ns = Header::captured_now().capture_ns;
        let (size, depth) = (self.line()?, self.line()?);
        let size = size.as_deref().and_then(|size| {
            let (width, height) = size.split_once(' ')?;
            Some((width.parse::<u64>().ok()?, height.parse::<u64>().ok()?))
        });
        let (Some((width, height)), "P6", Some("255")) = (size, magic.as_str(), depth.as_deref())
        else {
            if self.stop.is_set() {
                return Ok(None);
            }
            bail!(
                "ffmpeg wrote something that is no picture: a line '{magic}' where 'P6' begins one"
            );
        };
        let (tensor, bytes) = tensor::contiguous(DType::U8, &[height, width, CHANNELS])
            .with_context(|| format!("a picture of {width} x {height} pixels"))?;
        Ok(Some(Picture {
            tensor,
            bytes,
            capture_ns,
        }))
    }

    fn line(&mut self) -> anyhow::Result<Option<String>> {
        let mut line = Vec::new();
        let mut limited = (&mut self.pipe).take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut line);
        read.with_context(|| format!("reading '{}' failed", self.name))?;
        let text = String::from_utf8_lossy(&line);
        Ok((!line.is_empty()).then(|| text.trim_end().to_owned()))
    }
}

fn arguments(input: &OsString, is_camera: bool, options: &[(String, String)]) -> Vec<OsString> {
    let words = |words: &'static str| words.split(' ').map(OsString::from);
    let mut all: Vec<OsString> = words("-hide_banner -loglevel error -nostdin").collect();
    if is_camera {
        all.extend(words("-f v4l2"));
    } else if Path::new(input).is_file() {
        // Reads a file at the speed of its timestamps, like a camera.
        all.extend(words("-readrate 1"));
    }
    for (key, value) in options {
        all.push(format!("-{key}").into());
        if !value.is_empty() {
            all.push(value.into());
        }
    }
    all.extend([OsString::from("-i"), input.clone()]);
    // Passes each picture through once, whatever its timestamp.
    all.extend(words(
        "-map 0:v:0 -fps_mode passthrough -pix_fmt rgb24 -c:v ppm -f image2pipe -",
    ));
    all
}
