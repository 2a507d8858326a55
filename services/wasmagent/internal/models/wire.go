package models

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// maxErrorBody limits how many bytes of the body of an error response are read.
const maxErrorBody = 16 << 10

// transport returns the HTTP transport for requests to providers. Its argument is the timeout for the header of a
// response.
func transport(answer time.Duration) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: answer, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// boundedTransport limits the size of responses. It converts every response with a status of 300 or higher to a
// [FailureError].
type boundedTransport struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w boundedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.inner.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // if this fails, the status is sufficient
		_ = resp.Body.Close()
		return nil, statusFailure(resp.StatusCode, resp.Header, body, time.Now())
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxStreamBytes}
	return resp, nil
}

var errCutOff = errors.New("the connection failed")

type boundedBody struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, ErrLarge
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errCutOff, err)
	}
	return n, err
}

// transportError converts an error from a connection or a stream to an error of this package. hasBegun is true if the
// answer had already begun.
func transportError(ctx context.Context, err error, hasBegun bool) error {
	failure, found := errors.AsType[*FailureError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	dial, isOp := errors.AsType[*net.OpError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case ctx.Err() != nil: // a timeout of the transport does not end ctx
		return ctx.Err()
	case errors.Is(err, ErrLarge):
		return ErrLarge
	case found:
		return failure
	case errors.Is(err, errCutOff) && hasBegun:
		return &FailureError{Kind: ErrInterrupted, MayBeCharged: true}
	case isNet && timeout.Timeout() && (!isOp || dial.Op != "dial"): // the provider may charge for the question
		return &FailureError{Kind: ErrUnreachable, Message: "it did not answer in time", MayBeCharged: true}
	case untrusted:
		return &FailureError{Kind: ErrUnreachable, Message: "its certificate is not trusted"}
	case errors.Is(err, errCutOff), isNet:
		return &FailureError{Kind: ErrUnreachable, isRetryable: true}
	}
	return malformed("an event of the stream can't be parsed")
}

func malformed(reason string) *FailureError {
	return &FailureError{Kind: ErrMalformed, Message: reason, MayBeCharged: true}
}

func rejected(reason string) *FailureError { return &FailureError{Kind: ErrRejected, Message: reason} }

// missingEndError returns the error for a stream that ended before its answer was complete.
func missingEndError(hasBegun bool) *FailureError {
	if hasBegun {
		return &FailureError{Kind: ErrInterrupted, MayBeCharged: true}
	}
	return malformed("it is empty")
}
