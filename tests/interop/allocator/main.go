// Reads scenarios, one JSON document a line, and answers each with what kube-scheduler's allocator says, in a line.
//
// It is built with one release of k8s.io/dynamic-resource-allocation at a time; fields that only some releases have are
// set by reflection.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// A scenario: everything that one call of Allocate sees, and how often it is asked. CELFeatures are for selectors alone.
type scenario struct {
	Features      []string                     `json:"features"`
	CELFeatures   []string                     `json:"celFeatures"`
	Node          *corev1.Node                 `json:"node"`
	DeviceClasses []*resourceapi.DeviceClass   `json:"deviceClasses"`
	Slices        []*resourceapi.ResourceSlice `json:"slices"`
	Claims        []*resourceapi.ResourceClaim `json:"claims"`
	InUse         struct {
		Devices  []string                                                   `json:"devices"`
		Shares   []string                                                   `json:"shares"`
		Consumed map[string]map[resourceapi.QualifiedName]resource.Quantity `json:"consumed"`
	} `json:"inUse"`
	Repeat int `json:"repeat"`
}

// An answer: allocations, or an error, or neither where nothing fits.
type answer struct {
	Allocations  []resourceapi.AllocationResult `json:"allocations"`
	Error        string                         `json:"error,omitempty"`
	Timeout      bool                           `json:"timeout,omitempty"`
	Milliseconds float64                        `json:"milliseconds"`
}

type classes []*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("device class %q not found", name)
}

// enable sets the fields of a struct of booleans that are named, with a prefix, in the list.
func enable(target any, names sets.Set[string], prefix string) {
	value := reflect.ValueOf(target).Elem()
	for index := range value.NumField() {
		field := value.Type().Field(index).Name
		value.Field(index).SetBool(names.Has(strings.TrimPrefix(field, prefix)))
	}
}

// allocated is what kube-scheduler tells its allocator: shares are whole devices where devices cannot be shared.
func allocated(s *scenario) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, name := range s.InUse.Devices {
		part := strings.Split(name, "/")
		state.AllocatedDevices.Insert(structured.MakeDeviceID(part[0], part[1], part[2]))
	}
	shared := sets.New(s.Features...).Has("ConsumableCapacity")
	for _, name := range s.InUse.Shares {
		part := strings.Split(name, "/")
		if !shared {
			state.AllocatedDevices.Insert(structured.MakeDeviceID(part[0], part[1], part[2]))
			continue
		}
		share := types.UID(part[3])
		id := structured.MakeDeviceID(part[0], part[1], part[2])
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &share))
	}
	for name, amounts := range s.InUse.Consumed {
		if !shared {
			break
		}
		part := strings.Split(name, "/")
		id := structured.MakeDeviceID(part[0], part[1], part[2])
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, amounts))
	}
	return state
}

// caches keeps compiled expressions, one cache for each set of features.
var caches = map[cel.Features]*cel.Cache{}

func cacheFor(names sets.Set[string]) *cel.Cache {
	var features cel.Features
	enable(&features, names, "Enable")
	cache := caches[features]
	if cache == nil {
		cache = cel.NewCache(1000, features)
		caches[features] = cache
	}
	return cache
}

func allocate(s *scenario, limit time.Duration) (result answer) {
	defer func() {
		if panicked := recover(); panicked != nil {
			result = answer{Error: fmt.Sprint("panic: ", panicked)}
		}
	}()
	names := sets.New(s.Features...)
	var features structured.Features
	enable(&features, names, "")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	allocator, err := structured.NewAllocator(ctx, features, allocated(s), classes(s.DeviceClasses), s.Slices, cacheFor(names.Union(sets.New(s.CELFeatures...))))
	if err != nil {
		return answer{Error: err.Error()}
	}
	start := time.Now()
	allocations, err := allocator.Allocate(ctx, s.Node, s.Claims)
	result.Milliseconds = float64(time.Since(start).Microseconds()) / 1000
	if errors.Is(err, context.DeadlineExceeded) {
		result.Timeout = true
		return result
	}
	if err != nil {
		result.Error = err.Error()
		return result
	}
	for index := range allocations {
		for number := range allocations[index].Devices.Results {
			device := &allocations[index].Devices.Results[number]
			if device.ShareID != nil {
				share := types.UID("share")
				device.ShareID = &share
			}
		}
	}
	result.Allocations = allocations
	return result
}

func main() {
	limit, err := time.ParseDuration(os.Args[1])
	if err != nil {
		panic(err)
	}
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	encoder := json.NewEncoder(os.Stdout)
	decoder := json.NewDecoder(lines)
	for decoder.More() {
		var s scenario
		if err := decoder.Decode(&s); err != nil {
			panic(err)
		}
		answers := []answer{}
		for range max(s.Repeat, 1) {
			answers = append(answers, allocate(&s, limit))
			// What takes too long once takes too long again.
			if answers[len(answers)-1].Timeout {
				break
			}
		}
		if err := encoder.Encode(answers); err != nil {
			panic(err)
		}
	}
}
