package condition

import (
	"errors"
	"sync"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// Variables is a set of groups of variables that conditions can read.
type Variables uint8

// These are the groups of variables.
const (
	// VariableArgs contains the variable args.
	VariableArgs Variables = 1 << iota
	// VariableCaller contains the variables whose names start with "caller.".
	VariableCaller
	// VariableTool contains the variables whose names start with "tool.".
	VariableTool
	// VariableNow contains the variable now.
	VariableNow
)

// Input contains the values of the variables that a condition reads. Evaluate does not modify it. If the result depends
// on a variable without a value, the condition can't be evaluated.
type Input struct {
	// Args is the value of the variable args.
	Args Arguments
	// ArgsError is the reason why args has no value, or nil if its value is Args.
	ArgsError error
	// Properties contains the sorted names of the arguments that the tool's schema allows. It is empty if the schema
	// allows all names, or if the tool has no schema.
	Properties []string
	// Server, Tool, Method and URI are the values of call.server, call.tool, call.method and call.uri.
	Server, Tool, Method, URI string
	// Caller contains the values of the variables whose names start with "caller.". Chain contains the values of
	// caller.chain.
	Caller Caller
	Chain  []Caller
	// Class contains the values of the variables whose names start with "tool.".
	Class Class
	// Now is the value of the variable now. If it is the zero time, the variable has no value.
	Now time.Time
	// Unknown contains the variables whose values are not known, for example while tools are listed.
	Unknown Variables
}

// Caller contains the values that conditions can read about a caller, or about a principal in the caller's delegation
// chain.
type Caller struct {
	Subject, Agent, Tenant string
	Groups                 []string
	// Issuer, Client and Scopes come from the caller's JWT. They are empty if the caller has a token from the mesh.
	Issuer, Client string
	Scopes         []string
}

// Class is the classification of a tool. Category and Risk are empty if the tool is not classified.
type Class struct {
	Category, Risk string
	Tags           []string
}

// callerFields contains the names of the fields of a caller.
var callerFields = []string{"subject", "agent", "tenant", "groups", "issuer", "client", "scopes"}

// activation provides the values in an Input to CEL.
type activation struct {
	*Input

	// readUnknown is true if the condition has read a variable in Input.Unknown.
	readUnknown bool
}

var activations = sync.Pool{New: func() any { return new(activation) }}

func newActivation(in *Input) *activation {
	a := activations.Get().(*activation)
	a.Input, a.readUnknown = in, false
	return a
}

// release returns the activation to the pool. This is safe because no value that an evaluation returns refers to the
// activation.
func (a *activation) release() {
	a.Input = nil
	activations.Put(a)
}

var (
	errNotKnownYet = types.NewErr("is not known yet")
	errNoClass     = types.NewErr("the tool has no class; test tool.known first")
	errNoTime      = types.NewErr("the time is not known")
	errNoArgs      = errors.New("there are no arguments")
)

// Parent implements [interpreter.Activation].
func (*activation) Parent() interpreter.Activation { return nil }

// ResolveName implements [interpreter.Activation].
func (a *activation) ResolveName(name string) (any, bool) {
	if a.Unknown != 0 && a.Unknown&variableGroups[name] != 0 {
		a.readUnknown = true
		return errNotKnownYet, true
	}
	value := a.value(name)
	return value, value != nil
}

// value returns the value of a variable, or nil if there is no such variable.
func (a *activation) value(name string) ref.Val {
	switch name {
	case "args":
		return a.args()
	case "call.server":
		return types.String(a.Server)
	case "call.tool":
		return types.String(a.Tool)
	case "call.method":
		return types.String(a.Method)
	case "call.uri":
		return types.String(a.URI)
	case "caller.subject", "caller.agent", "caller.tenant", "caller.groups", "caller.issuer", "caller.client", "caller.scopes":
		return a.Caller.value(name[len("caller."):])
	case "caller.chain":
		return chainValue(a.Chain)
	case "tool.category", "tool.risk", "tool.tags", "tool.known":
		return a.Class.value(name)
	case "now":
		if a.Now.IsZero() {
			return errNoTime
		}
		return types.Timestamp{Time: a.Now}
	}
	return nil
}

func (a *activation) args() ref.Val {
	switch {
	case a.ArgsError != nil:
		return types.WrapErr(a.ArgsError)
	case a.Args.values == nil:
		return types.WrapErr(errNoArgs)
	}
	return a.Args.values
}

func (c *Class) value(name string) ref.Val {
	if name == "tool.known" {
		return types.Bool(c.Category != "")
	}
	if c.Category == "" {
		return errNoClass
	}
	switch name {
	case "tool.category":
		return types.String(c.Category)
	case "tool.risk":
		return types.String(c.Risk)
	default:
		return types.NewStringList(types.DefaultTypeAdapter, c.Tags)
	}
}

// value returns the value of one of [callerFields].
func (c *Caller) value(field string) ref.Val {
	switch field {
	case "subject":
		return types.String(c.Subject)
	case "agent":
		return types.String(c.Agent)
	case "tenant":
		return types.String(c.Tenant)
	case "issuer":
		return types.String(c.Issuer)
	case "client":
		return types.String(c.Client)
	case "scopes":
		return types.NewStringList(types.DefaultTypeAdapter, c.Scopes)
	default:
		return types.NewStringList(types.DefaultTypeAdapter, c.Groups)
	}
}

func chainValue(chain []Caller) ref.Val {
	out := make([]ref.Val, len(chain))
	for i := range chain {
		fields := new(object)
		for _, name := range callerFields {
			fields.members = append(fields.members, member{types.String(name), chain[i].value(name)})
		}
		fields.sort()
		out[i] = fields
	}
	return types.NewRefValList(types.DefaultTypeAdapter, out)
}
