//! Reads HTTP bodies: a request's to its end, a response's up to the length that is stored.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::BoxError;

pub(crate) type Answer<B, E> = Result<Response<ResponseBody<B>>, E>;

/// The body of a response: the bytes that were already read from the handler's body, followed by
/// the rest of the handler's body.
#[derive(Debug)]
pub struct ResponseBody<B> {
    read: VecDeque<Bytes>,
    rest: Option<Pin<Box<B>>>,
    trailers: Option<HeaderMap>,
}

impl<B> ResponseBody<B> {
    /// Wraps the body of a handler's response without reading it.
    pub(crate) fn passed(body: B) -> Self {
        Self { read: VecDeque::new(), rest: Some(Box::pin(body)), trailers: None }
    }
}

impl<B> From<Bytes> for ResponseBody<B> {
    fn from(bytes: Bytes) -> Self {
        let read = if bytes.is_empty() { VecDeque::new() } else { VecDeque::from([bytes]) };
        Self { read, rest: None, trailers: None }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if let Some(bytes) = self.read.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        if let Some(rest) = &mut self.rest {
            return rest.as_mut().poll_frame(cx).map(|frame| {
                frame.map(|frame| frame.map(|frame| frame.map_data(|mut d| whole(&mut d))))
            });
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        let rest = self.rest.as_ref().is_none_or(Body::is_end_stream);
        self.read.is_empty() && rest && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.read.iter().map(|bytes| bytes.len() as u64).sum::<u64>();
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        // Set the upper bound first. `set_lower` checks the lower bound against the upper bound.
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint.set_lower(rest.lower().saturating_add(read));
        hint
    }
}

pub(crate) struct Collected<B> {
    /// All bytes of the body; `None` if the body is too long to be stored.
    pub(crate) whole: Option<Bytes>,
    pub(crate) body: ResponseBody<B>,
}

pub(crate) async fn collect<B: Body>(body: B, limit: usize) -> Result<Collected<B>, B::Error> {
    let (mut body, mut read, mut length) = (Box::pin(body), VecDeque::new(), 0);
    let mut trailers = None;
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(mut data) => {
                length += data.remaining();
                read.push_back(whole(&mut data));
                if length > limit {
                    let body = ResponseBody { read, rest: Some(body), trailers };
                    return Ok(Collected { whole: None, body });
                }
            }
            Err(frame) => trailers = frame.into_trailers().ok().or(trailers),
        }
    }
    let bytes = joined(read, length);
    let body = ResponseBody { trailers, ..ResponseBody::from(bytes.clone()) };
    Ok(Collected { whole: Some(bytes), body })
}

pub(crate) enum Unread {
    TooLong,
    /// The read failed, for example because the client sent fewer bytes than its `Content-Length`.
    Broken(BoxError),
}

/// Reads a request's body to its end. Fails if the body is longer than `limit` bytes.
pub(crate) async fn read<B>(body: B, limit: usize) -> Result<Bytes, Unread>
where
    B: Body<Error: Into<BoxError>>,
{
    // The header `Content-Length` may announce a body that is too long. Such a body is refused
    // without reading.
    if body.size_hint().lower() > limit as u64 {
        return Err(Unread::TooLong);
    }
    match Limited::new(body, limit).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(e) if e.is::<LengthLimitError>() => Err(Unread::TooLong),
        Err(e) => Err(Unread::Broken(e)),
    }
}

fn whole(data: &mut impl Buf) -> Bytes {
    data.copy_to_bytes(data.remaining())
}

fn joined(mut read: VecDeque<Bytes>, length: usize) -> Bytes {
    if read.len() < 2 {
        return read.pop_front().unwrap_or_default();
    }
    let mut all = BytesMut::with_capacity(length);
    for bytes in &read {
        all.extend_from_slice(bytes);
    }
    all.freeze()
}

#[cfg(test)]
mod tests {
    use http_body_util::StreamBody;

    use super::*;

    type Frames = Vec<Result<Frame<Bytes>, BoxError>>;

    fn body(frames: Frames) -> impl Body<Data = Bytes, Error = BoxError> {
        StreamBody::new(futures_util::stream::iter(frames))
    }

    fn part(text: &'static str) -> Frame<Bytes> {
        Frame::data(Bytes::from_static(text.as_bytes()))
    }

    #[tokio::test]
    async fn a_short_response_is_kept_whole_with_its_trailers_for_the_caller() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, "1".parse().expect("etag"))]);
        let frames = vec![Ok(part("ab")), Ok(part("c")), Ok(Frame::trailers(trailers.clone()))];
        let collected = collect(body(frames), 3).await.expect("no error");
        assert_eq!(collected.whole.as_deref(), Some(&b"abc"[..]));
        assert_eq!(collected.body.size_hint().exact(), Some(3));
        let sent = collected.body.collect().await.expect("no error");
        assert_eq!(sent.trailers(), Some(&trailers));
        assert_eq!(sent.to_bytes(), "abc");
    }

    #[tokio::test]
    async fn a_long_response_is_sent_whole_and_not_kept() {
        let frames = vec![Ok(part("ab")), Ok(part("cd")), Ok(part("ef"))];
        let collected = collect(body(frames), 3).await.expect("no error");
        assert_eq!(collected.whole, None);
        assert_eq!(collected.body.collect().await.expect("no error").to_bytes(), "abcdef");
    }

    #[tokio::test]
    async fn an_empty_response_ends_at_once() {
        let collected = collect(body(vec![]), 3).await.expect("no error");
        assert!(collected.body.is_end_stream());
        assert_eq!(collected.whole.as_deref(), Some(&b""[..]));
    }

    #[tokio::test]
    async fn a_request_is_read_whole_or_refused() {
        let read_it = |frames, limit| read(body(frames), limit);
        assert!(
            matches!(read_it(vec![Ok(part("ab")), Ok(part("c"))], 3).await, Ok(b) if b == "abc")
        );
        let long = read_it(vec![Ok(part("ab")), Ok(part("cd"))], 3).await;
        assert!(matches!(long, Err(Unread::TooLong)));
        let broken = read_it(vec![Ok(part("ab")), Err("reset".into())], 3).await;
        assert!(matches!(broken, Err(Unread::Broken(_))));
        let announced = http_body_util::Full::new(Bytes::from_static(b"abcd"));
        assert!(matches!(read(announced, 3).await, Err(Unread::TooLong)));
    }
}
