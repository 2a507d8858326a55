package policy

import (
	"context"
	"errors"

	"github.com/sluice-mesh/sluice/services/internal/lru"
	"github.com/sluice-mesh/sluice/services/policy/internal/catalog"
	"github.com/sluice-mesh/sluice/services/policy/internal/inputschema"
	"github.com/sluice-mesh/sluice/services/policy/internal/store"
)

const (
	// maxSchemas limits the number of compiled input schemas in memory. maxSchemaBytes limits their total size in bytes.
	maxSchemas     = 1024
	maxSchemaBytes = 32 << 20
)

// schemaKey identifies a tool definition.
type schemaKey struct {
	server string
	digest catalog.Digest
}

// compiledSchema is the compiled input schema of a definition, or the error if the schema can't be used.
type compiledSchema struct {
	schema *inputschema.Schema
	err    error
}

func newSchemaCache() *lru.Cache[schemaKey, *compiledSchema] {
	return lru.New[schemaKey](maxSchemas, maxSchemaBytes, (*compiledSchema).size)
}

func compileSchema(definition string) *compiledSchema {
	schema, err := inputschema.Compile(definition)
	return &compiledSchema{schema, err}
}

func (c *compiledSchema) size() int {
	if c.err != nil {
		return 1 << 10
	}
	return c.schema.Size()
}

func (c *compiledSchema) check(params string) error {
	if c.err != nil {
		return c.err
	}
	return c.schema.Check(params)
}

// argumentCheck returns a function that validates the arguments in a call's params. It uses the input schema in the
// tool definition with the given digest. If the definition is unknown, argumentCheck returns nil. The parameter server
// may be nil.
func (s *Service) argumentCheck(ctx context.Context, server *catalog.Server, tool string, digest []byte) (func(params string) error, error) {
	if server == nil || len(digest) != len(catalog.Digest{}) || server.Tools[tool].FindDefinition(catalog.Digest(digest)) == nil {
		return nil, nil //nolint:nilnil // nil makes a rule with forward: strict refuse the call
	}
	key := schemaKey{server.Name, catalog.Digest(digest)}
	if known, ok := s.schemas.Get(key); ok {
		return known.check, nil
	}
	definition, err := s.store.Text(ctx, server.Name, key.digest)
	switch {
	case errors.Is(err, store.ErrNotStored):
		return nil, nil //nolint:nilnil // nil makes a rule with forward: strict refuse the call
	case err != nil:
		return nil, err
	}
	return func(params string) error { // the schema is compiled here, because only now does the caller hold a slot
		compiled := compileSchema(definition)
		s.schemas.Put(key, compiled)
		return compiled.check(params)
	}, nil
}
