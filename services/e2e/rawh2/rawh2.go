// Package rawh2 sends individual HTTP/2 frames, so that tests can violate the protocol. gRPC clients can't do this.
package rawh2

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

const (
	// dialTimeout is the time limit of [Dial].
	dialTimeout = 10 * time.Second
	// newName is the first byte of a header field that has a new name and is added to the dynamic table. first is a header
	// field that refers to the newest entry of this table (RFC 7541, sections 6.1, 6.2.1).
	newName, first = 0x40, 0x80 | 62
)

// A Conn is an HTTP/2 connection on which the client may send any bytes. It is not safe for concurrent use. It reads
// and discards the server's data, unless [Dial] was called with neverRead.
type Conn struct {
	net.Conn
	// Framer writes frames.
	*http2.Framer

	next uint32
	// ended is closed when the server has closed the connection, or when Close was called.
	ended chan struct{}
}

// Dial opens a connection, with TLS if cfg is not nil, and sends the HTTP/2 preface with the given settings. If
// neverRead is true, the connection never reads.
func Dial(addr string, cfg *tls.Config, neverRead bool, settings ...http2.Setting) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, dialTimeout)
	if err != nil {
		return nil, err
	}
	if cfg != nil {
		conn = tls.Client(conn, cfg)
	}
	c := &Conn{Conn: conn, Framer: http2.NewFramer(conn, conn), next: 1, ended: make(chan struct{})}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return nil, err
	}
	if err := c.WriteSettings(settings...); err != nil {
		return nil, err
	}
	if !neverRead {
		go c.discardInput()
	}
	return c, nil
}

func (c *Conn) discardInput() {
	defer close(c.ended)
	_, _ = io.Copy(io.Discard, c.Conn) // only the end of the connection matters
}

// Ended returns a channel that is closed when the server has closed the connection. If the connection never reads, the
// channel is never closed.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// HeaderBlock returns the header block for a gRPC call with additional fields. It does not use the dynamic table.
func HeaderBlock(method string, fields ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, fields...) {
		f.Sensitive = true // a sensitive field is not added to the table
		_ = enc.WriteField(f)
	}
	return block.Bytes()
}

// IndexedHeaderBlock returns a header block in which a field occurs n times. The first occurrence adds the field to the
// dynamic table. Each further occurrence is one byte that refers to that entry. size is the length of the field's
// value.
func IndexedHeaderBlock(name string, size, n int) []byte {
	block := hpackString([]byte{newName}, name)
	block = hpackString(block, strings.Repeat("v", size))
	return append(block, bytes.Repeat([]byte{first}, n-1)...)
}

func hpackString(block []byte, text string) []byte {
	const maxPrefix = 127 // maximum of a length's 7-bit prefix (RFC 7541, section 5.1)
	if len(text) < maxPrefix {
		return append(append(block, byte(len(text))), text...)
	}
	return append(binary.AppendUvarint(append(block, maxPrefix), uint64(len(text)-maxPrefix)), text...)
}

// Open opens a stream with a header block, which may need several frames, and returns the stream id. If end is true,
// the request has no body.
func (c *Conn) Open(block []byte, end bool) (uint32, error) {
	const frame = 16 << 10
	id := c.next
	c.next += 2
	head := block[:min(len(block), frame)]
	rest := block[len(head):]
	if err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndStream: end, EndHeaders: len(rest) == 0}); err != nil {
		return id, fmt.Errorf("open a stream: %w", err)
	}
	for len(rest) > 0 {
		part := rest[:min(len(rest), frame)]
		rest = rest[len(part):]
		if err := c.WriteContinuation(id, len(rest) == 0, part); err != nil {
			return id, fmt.Errorf("continue a header block: %w", err)
		}
	}
	return id, nil
}

// SendPartialMessage sends the beginning of a gRPC message. claimed is the length that the message declares, and size
// is the number of bytes that are sent.
func (c *Conn) SendPartialMessage(id uint32, claimed, size int) error {
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(claimed))
	if err := c.WriteData(id, false, head); err != nil {
		return err
	}
	for piece := make([]byte, 16<<10); size > 0; size -= len(piece) {
		if err := c.WriteData(id, false, piece[:min(size, len(piece))]); err != nil {
			return err
		}
	}
	return nil
}
