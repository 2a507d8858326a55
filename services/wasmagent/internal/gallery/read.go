package gallery

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"buf.build/go/protovalidate"
	"github.com/go-json-experiment/json/jsontext"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

const maxTemplatesRead = 1000

// ErrInvalid means that the input is not a valid array of templates. The error that wraps it contains the position of
// the fault.
var ErrInvalid = errors.New("is not an array of templates")

// Read parses a JSON array of templates. It returns an error that wraps [ErrInvalid] if the array is invalid, for
// example because a field is unknown or occurs twice.
func Read(text []byte) ([]*wasmagentv1.Template, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	if dec.PeekKind() != '[' {
		return nil, fmt.Errorf("the text %w", ErrInvalid)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, fmt.Errorf("the text %w: %w", ErrInvalid, err)
	}
	var all []*wasmagentv1.Template
	for dec.PeekKind() != ']' {
		at := "/" + strconv.Itoa(len(all))
		raw, err := dec.ReadValue()
		if err != nil {
			return nil, fmt.Errorf("%s: the text %w: %w", at, ErrInvalid, err)
		}
		if len(all) == maxTemplatesRead {
			return nil, fmt.Errorf("%s: the text %w: it has more than %d", at, ErrInvalid, maxTemplatesRead)
		}
		t := new(wasmagentv1.Template)
		if err := strictprotojson.Read(raw, t.ProtoReflect()); err != nil {
			return nil, fmt.Errorf("the text %w: %s%w", ErrInvalid, at, err)
		}
		if err := protovalidate.Validate(t); err != nil {
			return nil, fmt.Errorf("%s: the text %w: %w", at, ErrInvalid, err)
		}
		all = append(all, t)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, fmt.Errorf("the text %w: %w", ErrInvalid, err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the text %w: something follows it", ErrInvalid)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("the text %w: it is empty", ErrInvalid)
	}
	return all, nil
}
