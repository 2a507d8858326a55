// Package rawh2 speaks HTTP/2 frame by frame, as no well-behaved client of gRPC
// does.
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
	// dialTimeout bounds how long a connection may take, until its settings are read.
	dialTimeout = 10 * time.Second
	// newName begins a field that enters the table under a new name, and first is the
	// index of the newest entry, as a field of its own (RFC 7541, sections 6.1, 6.2.1).
	newName, first = 0x40, 0x80 | 62
)

// A Conn is a connection whose client may send anything. It is for one goroutine;
// what the server sends is thrown away unless Deaf.
type Conn struct {
	net.Conn
	// Framer writes frames.
	*http2.Framer

	next uint32
	// ended is closed when the server has closed the connection, or Close was called.
	ended chan struct{}
}

// Dial opens a connection, with TLS where cfg is not nil, and says the preface of
// HTTP/2, with these settings. A deaf one never reads what the server sends.
func Dial(addr string, cfg *tls.Config, deaf bool, settings ...http2.Setting) (*Conn, error) {
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
	if !deaf {
		go c.listen()
	}
	return c, nil
}

func (c *Conn) listen() {
	defer close(c.ended)
	_, _ = io.Copy(io.Discard, c.Conn) // its end is all that matters
}

// Ended is closed when the server has closed the connection. A deaf one never
// knows.
func (c *Conn) Ended() <-chan struct{} { return c.ended }

// Block is the head of a call of a gRPC method, encoded without the dynamic table,
// and whatever fields follow.
func Block(method string, fields ...hpack.HeaderField) []byte {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
	}, fields...) {
		f.Sensitive = true // which keeps it out of the table
		_ = enc.WriteField(f)
	}
	return block.Bytes()
}

// Indexed is a field that stands once on the wire and n times in the head: it
// enters the table, and every other time is one byte that names it.
func Indexed(name string, value, n int) []byte {
	block := hpackString([]byte{newName}, name)
	block = hpackString(block, strings.Repeat("v", value))
	return append(block, bytes.Repeat([]byte{first}, n-1)...)
}

func hpackString(to []byte, text string) []byte {
	const most = 127 // what the first byte holds of a length (RFC 7541, section 5.1)
	if len(text) < most {
		return append(append(to, byte(len(text))), text...)
	}
	return append(binary.AppendUvarint(append(to, most), uint64(len(text)-most)), text...)
}

// Open opens a stream with a head that may need more frames than one, and returns
// its id. The client has more to say on it unless end.
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
			return id, fmt.Errorf("go on with a head: %w", err)
		}
	}
	return id, nil
}

// Message sends the first have bytes of a message that claims to have claimed ones.
func (c *Conn) Message(id uint32, claimed, have int) error {
	head := binary.BigEndian.AppendUint32([]byte{0}, uint32(claimed))
	if err := c.WriteData(id, false, head); err != nil {
		return err
	}
	for piece := make([]byte, 16<<10); have > 0; have -= len(piece) {
		if err := c.WriteData(id, false, piece[:min(have, len(piece))]); err != nil {
			return err
		}
	}
	return nil
}
