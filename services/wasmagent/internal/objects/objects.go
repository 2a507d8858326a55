// Package objects stores objects by their keys, in a folder or in a bucket of an S3 object store. The wasmagent service
// stores the states of agents with it.
package objects

import (
	"context"
	"errors"
	"io"
	"iter"
	"time"
)

// ErrNotFound means that there is no object with a key.
var ErrNotFound = errors.New("no such object")

// Object describes an object.
type Object struct {
	Key string
	// Modified is when the object was written.
	Modified time.Time
}

// Bucket is a set of objects. A key has two parts with a slash between them. It is safe for concurrent use.
type Bucket interface {
	// Write writes an object whole, or not at all. In a folder the object is synced to disk when Write returns.
	Write(ctx context.Context, key string, data []byte) error
	// Read opens an object. Errors: [ErrNotFound].
	Read(ctx context.Context, key string) (io.ReadCloser, error)
	// List returns the objects whose keys begin with a first part. After an error it ends.
	List(ctx context.Context, first string) iter.Seq2[Object, error]
	// Delete deletes an object, if there is one.
	Delete(ctx context.Context, key string) error
	// Close gives back what the bucket uses.
	Close() error
}
