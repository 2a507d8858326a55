package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
)

const (
	// maxBody is the maximum length, in bytes, of a record without the members that the chain adds.
	maxBody = 256 << 10
	// maxText is the maximum length of a string that a caller might have chosen. It is measured in bytes after JSON
	// escaping.
	maxText = 4 << 10
	// maxRefusedText replaces maxText in refusals. It is lower because a caller can cause refusals at no cost.
	maxRefusedText = 256
	// maxWritten is the maximum number of bytes that one byte of a string uses in a line, because of JSON escaping.
	maxWritten = 6
	// maxFrame is the maximum number of bytes that the chain adds to a record, including the additional members of a
	// segment's first record. These bytes are the numbers (19 digits each), the time (30 bytes), the hash, the key, the
	// CRC, the names of these members and the newline.
	maxFrame = 320
	// crcTail is the length of `,"crc":"` + 8 digits + `"}`.
	crcTail = 18
)

// ErrTooLarge means that a record exceeds the maximum length of a line, because it has too many limits or principals.
var ErrTooLarge = errors.New("record is longer than 256 KiB")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// link is a position in a chain. Its fields describe the last record before that position.
type link struct {
	seq  int64
	hash [sha256.Size]byte
	// unknown is true if hash is unknown because retention has removed the record. In that case the field Prev of the
	// next record is not checked.
	unknown bool
}

// appendLine appends the line of the next record to dst, including the newline, and advances l to that record. body is
// the record's JSON without the members that the chain adds. extra contains members, each followed by a comma, which
// appendLine inserts before the members of body.
func (l *link) appendLine(dst []byte, now time.Time, extra, body []byte) []byte {
	start := len(dst)
	dst = append(dst, `{"seq":`...)
	dst = strconv.AppendInt(dst, l.seq+1, 10)
	dst = append(dst, `,"time":"`...)
	dst = now.AppendFormat(dst, time.RFC3339Nano)
	dst = append(dst, `","prev":"`...)
	dst = hex.AppendEncode(dst, l.hash[:])
	dst = append(dst, `",`...)
	dst = append(dst, extra...)
	dst = append(dst, body[1:len(body)-1]...)
	dst = appendCRC(dst, dst[start:])
	*l = link{seq: l.seq + 1, hash: sha256.Sum256(dst[start:])}
	return append(dst, '\n')
}

// advance parses the line of the next record and advances l to that record. If the line is not a record, the error
// wraps errUnreadable.
func (l *link) advance(line []byte) (Record, error) {
	rec, err := parse(line)
	if err != nil {
		return Record{}, err
	}
	if rec.Seq != l.seq+1 {
		return Record{}, fmt.Errorf("has seq %d instead of %d: a record is missing, moved or repeated", rec.Seq, l.seq+1)
	}
	if want := l.hexHash(); rec.Prev != want && !l.unknown {
		return Record{}, fmt.Errorf("has prev %.12s…, but the hash of the record before it is %.12s…: one of the two was changed", rec.Prev, want)
	}
	*l = link{seq: rec.Seq, hash: sha256.Sum256(line)}
	return *rec, nil
}

func (l *link) hexHash() string { return hex.EncodeToString(l.hash[:]) }

var errUnreadable = errors.New("is not a complete record")

// parse parses one line, without its newline, and checks its CRC.
func parse(line []byte) (*Record, error) {
	sum := max(0, len(line)-crcTail)
	if want := appendCRC(nil, line[:sum]); !bytes.Equal(line[sum:], want) {
		return nil, fmt.Errorf("%w: its checksum is missing or wrong", errUnreadable)
	}
	rec := new(Record)
	if err := json.Unmarshal(line, rec); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return rec, nil
}

// appendCRC appends the CRC of text as the last member of a record, and the closing brace.
func appendCRC(dst, text []byte) []byte {
	var sum [4]byte
	binary.BigEndian.PutUint32(sum[:], crc32.Checksum(text, castagnoli))
	dst = append(dst, `,"crc":"`...)
	dst = hex.AppendEncode(dst, sum[:])
	return append(dst, `"}`...)
}

// encodeBody writes the record to buf as one line of JSON, without the members that the chain adds. Strings can contain
// arbitrary bytes. encodeBody modifies the record.
func encodeBody(buf *bytes.Buffer, rec *Record) error {
	rec.Seq, rec.Time, rec.Prev, rec.SealKey, rec.Oldest, rec.CRC = 0, time.Time{}, "", "", 0, ""
	rec.ReservedAt, rec.Since = rec.ReservedAt.UTC(), rec.Since.UTC()
	shortenTexts(rec)
	buf.Reset()
	w := lineWriter{out: buf.AvailableBuffer()}
	if w.record(rec); w.err != nil {
		return w.err
	}
	buf.Write(w.out)
	if !isPlain(buf.Bytes()) {
		plain := escape(buf.Bytes())
		buf.Reset()
		buf.Write(plain)
	}
	if buf.Len() > maxBody {
		return ErrTooLarge
	}
	return nil
}

// RefusalSize returns the approximate number of bytes that [Journal.Refusal] writes for rec. The exact size depends on
// the number of digits of the sequence number and on the name of the build. RefusalSize does not modify rec.
func RefusalSize(rec *Record) int {
	refusal := *rec
	refusal.Kind = KindRefusal
	var body bytes.Buffer
	if err := encodeBody(&body, &refusal); err != nil {
		return 0 // Refusal does not write it either
	}
	return len(new(link).appendLine(nil, time.Now(), nil, body.Bytes()))
}

// shortenTexts shortens strings that a caller might have made long, so that the record of a refusal is always small.
func shortenTexts(rec *Record) {
	limit := maxText
	if rec.Kind == KindRefusal {
		limit = maxRefusedText
	}
	for _, text := range [...]*string{
		&rec.DecisionID, &rec.TraceID, &rec.Tenant, &rec.Subject, &rec.Agent, &rec.Owner, &rec.Person, &rec.TokenID, &rec.Issuer, &rec.Client,
		&rec.Session, &rec.Run, &rec.Server, &rec.Method, &rec.Tool, &rec.Code, &rec.Message, &rec.Peer,
	} {
		*text = shorten(*text, limit)
	}
	if len(rec.Votes) > 0 {
		rec.Votes = slices.Clone(rec.Votes) // copied, because the caller's votes must not be modified
	}
	for i := range rec.Votes {
		rec.Votes[i].Comment = shorten(rec.Votes[i].Comment, maxRefusedText)
	}
}

// shorten truncates text to at most limit bytes, measured after JSON escaping. A truncated string ends in "…".
func shorten(text string, limit int) string {
	if len(text) <= limit/maxWritten {
		return text
	}
	for at, r := range text {
		if limit -= writtenLen(r); limit < 0 {
			return text[:at] + "…"
		}
	}
	return text
}

// writtenLen returns the maximum number of bytes that a character of a string uses in a line.
func writtenLen(r rune) int {
	switch {
	case r == '"', r == '\\':
		return 2
	case !isEscaped(r):
		return utf8.RuneLen(r) // invalid UTF-8 is written as U+FFFD
	case r > 0xffff:
		return 12
	default:
		return 6
	}
}

// isEscaped reports whether a character is written as a \uXXXX escape.
func isEscaped(r rune) bool { return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) }

// isPlain reports whether JSON text contains only printable ASCII. It does not check for bytes below 0x20, because the
// encoder has already escaped them.
func isPlain(text []byte) bool {
	const low, high = 0x0101010101010101, 0x8080808080808080
	for ; len(text) >= 8; text = text[8:] {
		// Adding 1 to each byte also sets the high bit of 0x7f, the delete character.
		if word := binary.LittleEndian.Uint64(text); (word|(word+low))&high != 0 {
			return false
		}
	}
	for _, b := range text {
		if b >= 0x7f {
			return false
		}
	}
	return true
}

// escape returns JSON text in which every control, format and line-separating character is written as \uXXXX. The
// result is equivalent JSON and can be shown safely in a terminal. text must be valid UTF-8.
func escape(text []byte) []byte {
	out := make([]byte, 0, len(text)+64)
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r < 0x7f, !isEscaped(r):
			out = append(out, text[:size]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		text = text[size:]
	}
	return out
}
