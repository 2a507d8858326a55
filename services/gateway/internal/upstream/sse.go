package upstream

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
)

// readEvents reads Server-Sent Events (HTML Standard, section 9.2.6) until the
// answer to req, which it returns. Notifications before it that belong to req go to
// events. Requests of the server and answers to other requests are dropped: nobody
// could have asked for them here.
func readEvents(r io.Reader, clean *scrubber, req Request, events func([]byte)) (*gate.Answer, error) {
	lines := bufio.NewReaderSize(r, 8<<10)
	for range maxEvents {
		data, err := readEvent(lines)
		if err != nil {
			return nil, err
		}
		data = clean.answer(data)
		if len(data) == 0 {
			continue // a priming event, or one that carries no message
		}
		message, err := gate.ReadAnswer(data, gate.AnswerLimits())
		if err != nil {
			return nil, fmt.Errorf("read an event: %w", err)
		}
		switch {
		case message.Kind == gate.Response && gate.SameID(message.ID.Of(data), req.ID) && forged(message):
			return nil, errForged
		case message.Kind == gate.Response && gate.SameID(message.ID.Of(data), req.ID):
			return message, nil
		case message.Kind == gate.Notification && events != nil && belongs(message, req.ProgressToken):
			events(data)
		}
	}
	return nil, fmt.Errorf("more than %d events came before the answer", maxEvents)
}

// readEvent reads one event and returns its data. Events of another type than
// message, such as pings, carry none. Resuming is not offered, so the other
// fields don't matter.
func readEvent(r *bufio.Reader) ([]byte, error) {
	var data []byte
	seen, other := 0, false
	for {
		line, err := readLine(r, MaxMessage-seen)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if other {
				return nil, nil
			}
			return data, nil
		}
		seen += len(line)
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			other = len(value) > 0 && string(value) != "message"
		case "data":
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, value...)
		}
	}
}

// readLine reads a line without its end. The stream's end is an error: an event
// without a blank line behind it is not whole.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > limit:
			return nil, fmt.Errorf("an event is larger than %d bytes", MaxMessage)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == io.EOF:
			return nil, errors.New("the stream ended before the answer")
		case err != nil:
			return nil, err
		}
		return bytes.TrimRight(line, "\r\n"), nil
	}
}
