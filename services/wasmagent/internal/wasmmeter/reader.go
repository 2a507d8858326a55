package wasmmeter

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// A reader reads a module, or a part of a module, in the binary format (WebAssembly 2.0, section 5). It stores the
// first error in err. After that, it returns only zero values.
type reader struct {
	text []byte
	at   int
	// offset is the position of text in the module.
	offset int
	err    error
}

var errTruncated = errors.New("ends in the middle")

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = fmt.Errorf("at byte %d: %w", r.offset+r.at, err)
	}
	r.at = len(r.text)
}

func (r *reader) done() bool { return r.at >= len(r.text) }

func (r *reader) byte() byte {
	if r.at >= len(r.text) {
		r.fail(errTruncated)
		return 0
	}
	b := r.text[r.at]
	r.at++
	return b
}

// bytes returns the next n bytes without copying them. The caller must not change them.
func (r *reader) bytes(n uint32) []byte {
	if uint64(n) > uint64(len(r.text)-r.at) {
		r.fail(errTruncated)
		return nil
	}
	b := r.text[r.at : r.at+int(n) : r.at+int(n)]
	r.at += int(n)
	return b
}

// part returns a reader for the next n bytes.
func (r *reader) part(n uint32) *reader {
	at := r.offset + r.at
	text := r.bytes(n)
	return &reader{text: text, offset: at, err: r.err}
}

// u32 reads an unsigned LEB128 number of at most five bytes.
func (r *reader) u32() uint32 {
	var v uint64
	for shift := 0; shift < 35; shift += 7 {
		b := r.byte()
		v |= uint64(b&0x7f) << shift
		if b < 0x80 {
			if v > 1<<32-1 {
				break
			}
			return uint32(v)
		}
	}
	r.fail(errors.New("is not a number of 32 bits"))
	return 0
}

// signed reads a signed LEB128 number that has at most the given number of bits.
func (r *reader) signed(bits int) int64 {
	var v int64
	for shift := 0; shift < (bits+6)/7*7; shift += 7 {
		b := r.byte()
		if shift < 64 {
			v |= int64(b&0x7f) << shift
		}
		if b >= 0x80 {
			continue
		}
		if shift+7 < 64 && b&0x40 != 0 {
			v |= -1 << (shift + 7)
		}
		// The unused bits of the last byte must repeat the sign.
		if spare := shift + 7 - bits; spare > 0 {
			top := int8(b<<1) >> (7 - spare) // the sign and the unused bits
			if top != 0 && top != -1 {
				break
			}
		}
		return v
	}
	r.fail(fmt.Errorf("is not a number of %d bits", bits))
	return 0
}

func (r *reader) name() string {
	b := r.bytes(r.u32())
	if !utf8.Valid(b) {
		r.fail(errors.New("a name is not UTF-8"))
	}
	return string(b)
}

// count reads the number of elements that follow. It fails if this number is higher than the given limit, or higher
// than the number of remaining bytes.
func (r *reader) count(what string, most int) int {
	n := r.u32()
	if uint64(n) > uint64(most) {
		r.fail(fmt.Errorf("%w: %d %s; there may be %d", ErrLimitExceeded, n, what, most))
		return 0
	}
	if uint64(n) > uint64(len(r.text)-r.at) {
		r.fail(errTruncated)
		return 0
	}
	return int(n)
}

func putU32(out []byte, v uint32) []byte {
	for v >= 0x80 {
		out = append(out, byte(v)|0x80)
		v >>= 7
	}
	return append(out, byte(v))
}

func putSigned(out []byte, v int64) []byte {
	for {
		b := byte(v & 0x7f)
		v >>= 7
		if v == 0 && b&0x40 == 0 || v == -1 && b&0x40 != 0 {
			return append(out, b)
		}
		out = append(out, b|0x80)
	}
}

func putName(out []byte, name string) []byte {
	return append(putU32(out, uint32(len(name))), name...)
}

func putPart(out, part []byte) []byte {
	return append(putU32(out, uint32(len(part))), part...)
}
