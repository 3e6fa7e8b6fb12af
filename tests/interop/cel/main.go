// Reads expressions, one JSON document a line, and answers each with what Kubernetes says of it, in a line.
//
// It is built with one release of k8s.io/dynamic-resource-allocation at a time; fields that only some releases have are
// set by reflection. With the argument "declarations" it prints the functions of the release's environment instead.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"
)

// An expression, the gates and the kind of environment that it is compiled in, and the devices that it is asked about.
type question struct {
	Expression string   `json:"expression"`
	Features   []string `json:"features"`
	New        bool     `json:"new"`
	Derived    bool     `json:"derived"`
	Devices    []device `json:"devices"`
}

type device struct {
	Driver string             `json:"driver"`
	Device resourceapi.Device `json:"device"`
}

// An answer: why it does not compile, or the greatest cost that is possible and what each device gives.
type answer struct {
	Error   string  `json:"error,omitempty"`
	MaxCost uint64  `json:"maxCost"`
	Results []value `json:"results"`
}

type value struct {
	Value any    `json:"value"`
	Error string `json:"error,omitempty"`
	Cost  uint64 `json:"cost"`
}

func set(target any, name string, to any) {
	field := reflect.ValueOf(target).Elem().FieldByName(name)
	if field.IsValid() {
		field.Set(reflect.ValueOf(to))
	}
}

func features(names []string) cel.Features {
	var result cel.Features
	for _, name := range names {
		set(&result, "Enable"+name, true)
	}
	return result
}

func evaluate(compiled *cel.CompilationResult, given device, derived bool) (result value) {
	defer func() {
		if err := recover(); err != nil {
			result = value{Error: fmt.Sprintf("panic: %v", err)}
		}
	}()
	input := cel.Device{
		Driver:                   given.Driver,
		AllowMultipleAllocations: given.Device.AllowMultipleAllocations,
		Attributes:               given.Device.Attributes,
		Capacity:                 given.Device.Capacity,
	}
	if derived {
		method := reflect.ValueOf(*compiled).MethodByName("EvaluateDerivedAttribute")
		out := method.Call([]reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(input)})
		if err, ok := out[2].Interface().(error); ok {
			return value{Error: err.Error()}
		}
		return value{Value: out[0].Interface()}
	}
	matches, details, err := compiled.DeviceMatches(context.Background(), input)
	result.Value = matches
	if details != nil && details.ActualCost() != nil {
		result.Cost = *details.ActualCost()
	}
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

func ask(asked question) (result answer) {
	defer func() {
		if err := recover(); err != nil {
			result = answer{Error: fmt.Sprintf("panic: %v", err)}
		}
	}()
	kind := environment.StoredExpressions
	if asked.New {
		kind = environment.NewExpressions
	}
	options := cel.Options{EnvType: &kind}
	set(&options, "DerivedAttribute", asked.Derived)
	compiled := cel.GetCompiler(features(asked.Features)).CompileCELExpression(asked.Expression, options)
	if compiled.Error != nil {
		return answer{Error: compiled.Error.Detail}
	}
	result.MaxCost = compiled.MaxCost
	for _, one := range asked.Devices {
		result.Results = append(result.Results, evaluate(&compiled, one, asked.Derived))
	}
	return result
}

func declarations() {
	compiled := cel.GetCompiler(features(nil)).CompileCELExpression("true", cel.Options{})
	var lines []string
	for name, function := range compiled.Environment.Functions() {
		for index, overload := range function.OverloadDecls() {
			line := fmt.Sprintf("%s %02d %s %t %s(", name, index, overload.ID(), overload.IsMemberFunction(), overload.ResultType())
			for _, argument := range overload.ArgTypes() {
				line += " " + argument.String()
			}
			lines = append(lines, line+" )")
		}
	}
	sort.Strings(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == "declarations" {
		declarations()
		return
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 64<<20)
	output := json.NewEncoder(os.Stdout)
	for input.Scan() {
		var asked question
		if err := json.Unmarshal(input.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := output.Encode(ask(asked)); err != nil {
			panic(err)
		}
	}
}
