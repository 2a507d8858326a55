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

// maxRefusal bounds what is read of the body of a refusal, in bytes.
const maxRefusal = 16 << 10

// transport returns the transport to providers. answer bounds the time until an answer's header.
func transport(answer time.Duration) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ResponseHeaderTimeout: answer, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: true,
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// wire bounds what is read of an answer, and turns every answer with a status of 300 or more into a [FailureError].
type wire struct{ inner http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (w wire) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := w.inner.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusMultipleChoices {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status is sufficient
		_ = resp.Body.Close()
		return nil, statusFailure(resp.StatusCode, resp.Header, body, time.Now())
	}
	resp.Body = &boundedBody{ReadCloser: resp.Body, left: maxWire}
	return resp, nil
}

// errCutOff is wrapped by the error of a connection that failed while an answer was read.
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

// lostError converts an error of a connection or of its stream. begun is true if an answer had begun.
func lostError(ctx context.Context, err error, begun bool) error {
	failure, found := errors.AsType[*FailureError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	dial, isOp := errors.AsType[*net.OpError](err)
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case ctx.Err() != nil: // a time-out of the transport is not one of ctx
		return ctx.Err()
	case errors.Is(err, ErrLarge):
		return ErrLarge
	case found:
		return failure
	case errors.Is(err, errCutOff) && begun:
		return &FailureError{Kind: ErrBroken, Charged: true}
	case isNet && timeout.Timeout() && (!isOp || dial.Op != "dial"): // the provider has the question, and may work on it
		return &FailureError{Kind: ErrUnreachable, Said: "it did not answer in time", Charged: true}
	case untrusted:
		return &FailureError{Kind: ErrUnreachable, Said: "its certificate is not trusted"}
	case errors.Is(err, errCutOff), isNet:
		return &FailureError{Kind: ErrUnreachable, again: true}
	}
	return malformed("its pieces can't be read")
}

func malformed(why string) *FailureError {
	return &FailureError{Kind: ErrMalformed, Said: why, Charged: true}
}

func rejected(why string) *FailureError { return &FailureError{Kind: ErrRejected, Said: why} }

// noEnd returns the error of an answer without an end: it broke off, or was empty.
func noEnd(begun bool) *FailureError {
	if begun {
		return &FailureError{Kind: ErrBroken, Charged: true}
	}
	return malformed("it is empty")
}
