package gate

import (
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// Listing is the answer with the elements of another list of its result in place of those of
// result.tools, each called by another of its members than "name": ToolList, Tools, and what
// [Answer.Clean] hides, are about that list. It is read a second time, so that answers whose list
// nobody filters are not. ToolList is absent where there is no such list. An [*Error] says that
// some reader could take another member for it, or that it is too long.
func (a *Answer) Listing(list, name string) (*Answer, error) {
	out := *a
	out.ToolList, out.Tools = Span{}, nil
	if !a.Result.Present() {
		return &out, nil
	}
	r := reader{scanner: scanner{raw: a.Raw, pos: a.Result.Start, limits: AnswerLimits()}, a: &out}
	members, fields := foldTable(list), foldTable(name)
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
		case string(f.key) == list:
			err = r.list(name, fields)
		default:
			err = r.value()
		}
		if err != nil {
			return nil, err
		}
	}
}
