package jsonrpc

import (
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// Listing returns a copy of the answer in which ToolList and Tools describe another list in the result, such as
// prompts. listKey is the key of that list in the result, and nameKey is the key of an element's name. When
// [Answer.Clean] is called on the copy, it hides elements of that list. If the result does not contain the list,
// ToolList is absent.
//
// Listing parses the result a second time, so it should be called only if the list is to be filtered. The error is an
// [*Error] if a parser could mistake another member for the list, or if the list is too long.
func (a *Answer) Listing(listKey, nameKey string) (*Answer, error) {
	out := *a
	out.ToolList, out.Tools = Span{}, nil
	if !a.Result.Present() {
		return &out, nil
	}
	r := reader{scanner: scanner{raw: a.Raw, pos: a.Result.Start, limits: AnswerLimits()}, a: &out}
	members, fields := foldTable(listKey), foldTable(nameKey)
	var f frame
	if err := r.enter(&f); err != nil {
		return nil, err
	}
	for {
		more, err := r.member(&f)
		switch {
		case err != nil:
			return nil, err
		case !more:
			return &out, nil
		case isVariant(members, f.key):
			return nil, r.fail(commonv1.Code_CODE_FIELD_CASE_VARIANT, f.start, "a key differs from a protocol field in case only")
		case string(f.key) == listKey:
			err = r.list(nameKey, fields)
		default:
			err = r.value()
		}
		if err != nil {
			return nil, err
		}
	}
}
