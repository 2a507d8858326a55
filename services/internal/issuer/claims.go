package issuer

import (
	"encoding/base64"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

// object is a JSON object, such as the header or the claims of a token.
type object map[string]any

// decodePart decodes a part of a token, which is an object in base64url without padding (RFC 7515, section 2). It
// refuses objects that two parsers could read differently because of duplicate members, invalid UTF-8, or text after
// the object.
func decodePart(part string) (object, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(part)
	if err != nil {
		return nil, errors.New("it is not base64url without padding")
	}
	var out object
	if err := json.Unmarshal(raw, &out); err != nil || out == nil {
		return nil, errors.New("it is not a JSON object, or has a member twice")
	}
	return out, nil
}

// splitToken returns the three parts of a token.
func splitToken(token string) (header, claims, signature string, ok bool) {
	header, rest, _ := strings.Cut(token, ".")
	claims, signature, ok = strings.Cut(rest, ".")
	return header, claims, signature, ok && header != "" && claims != "" && signature != "" && !strings.Contains(signature, ".")
}

// find returns the value of the claim at a path. It reports false if the token does not have the claim. A claim that is
// null counts as absent.
func (o object) find(path valuepath.Path) (any, bool) {
	var value any = map[string]any(o)
	for _, name := range path {
		within, ok := value.(map[string]any)
		if !ok {
			return nil, false
		}
		if value = within[name]; value == nil {
			return nil, false
		}
	}
	return value, true
}

// text returns the value of a member that must be a string. It returns "" if the member is absent.
func (o object) text(name string) (string, *Refusal) {
	value := o[name]
	if value == nil {
		return "", nil
	}
	text, ok := value.(string)
	if !ok {
		return "", refuse(Malformed, "the token's %s is not a text", name)
	}
	return text, nil
}

// texts returns the value of a member that is a string or a list of strings (RFC 7519, section 4.1.3). It returns nil
// if the member is absent.
func (o object) texts(name string) ([]string, *Refusal) {
	switch value := o[name].(type) {
	case nil:
		return nil, nil
	case string:
		return []string{value}, nil
	case []any:
		out, ok := textsOf(value)
		if !ok {
			return nil, refuse(Malformed, "the token's %s contains an item that is not a text", name)
		}
		return out, nil
	default:
		return nil, refuse(Malformed, "the token's %s is neither a text nor a list", name)
	}
}

func textsOf(list []any) ([]string, bool) {
	out := make([]string, len(list))
	for i, item := range list {
		text, ok := item.(string)
		if !ok {
			return nil, false
		}
		out[i] = text
	}
	return out, true
}

// maxDate is the latest time that a claim can contain, as seconds since 1970. It is in the year 9999.
const maxDate = 253402300799

// date returns the value of a member that is a NumericDate (RFC 7519, section 2). It returns the zero time if the
// member is absent.
func (o object) date(name string) (time.Time, *Refusal) {
	value := o[name]
	if value == nil {
		return time.Time{}, nil
	}
	seconds, ok := value.(float64)
	if !ok || seconds < 0 || seconds > maxDate {
		return time.Time{}, refuse(Malformed, "the token's %s is not a time in seconds since 1970", name)
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*float64(time.Second))), nil
}
